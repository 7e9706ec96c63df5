"""One operator alone: what the oracle makes of it, and what ONNX Runtime does."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from onnx import helper

from onnx_attest.verify.arithmetic import PROFILES
from onnx_attest.verify.oracle.bounded import Bounded, exact
from onnx_attest.verify.oracle.ops import OPERATORS
from onnx_attest.verify.oracle.ops.operator import Node

FP32 = replace(PROFILES["fp32"], deviations=True)


def node(operator, opset=22, types=None, count=1, **attributes):
    names = tuple(f"x{index}" for index in range(count))
    of = (types or {}).get
    return Node(operator, operator, opset, attributes, names, ("y",), type_of=lambda name: of(name, 0))


def apply(operator, *inputs, arithmetic=FP32, opset=22, types=None, **attributes):
    """Return the first output of one operator; arrays are exact."""
    given = [one if isinstance(one, Bounded) or one is None else exact(one) for one in inputs]
    own = node(operator, opset, types, len(given), **attributes)
    with np.errstate(all="ignore"):
        result = OPERATORS[operator](own, given, arithmetic)[0]
    own.refuse_unasked()
    return result


def session_of(model, **settings):
    """Return a session of ONNX Runtime on one thread; settings are those of its SessionOptions."""
    ort = pytest.importorskip("onnxruntime")
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    for name, value in settings.items():
        setattr(options, name, value)
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def model_of(operator, arrays, opset=22, **attributes):
    names = [f"x{index}" for index in range(len(arrays))]
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in zip(names, arrays, strict=True)
    ]
    output = helper.make_tensor_value_info("y", helper.np_dtype_to_tensor_dtype(arrays[0].dtype), None)
    graph = helper.make_graph([helper.make_node(operator, names, ["y"], **attributes)], "g", inputs, [output])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def on_runtime(operator, arrays, opset=22, **attributes):
    session = session_of(model_of(operator, arrays, opset, **attributes))
    return session.run(None, {f"x{index}": array for index, array in enumerate(arrays)})[0]
