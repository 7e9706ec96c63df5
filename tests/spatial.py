"""Operators over spatial axes: one node by the oracle and by ONNX Runtime, and operands moved within their errors."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from onnx import helper

from onnx_attest.verify.arithmetic import PROFILES
from onnx_attest.verify.oracle.bounded import Bounded, exact
from onnx_attest.verify.oracle.ops.images import convolution, nchwc, pooling, resampling
from onnx_attest.verify.oracle.ops.operator import Node

FP32 = replace(PROFILES["fp32"], deviations=True)
FP64 = PROFILES["fp64"]
STORED = 2.0**-24
OPERATORS = {
    **convolution.OPERATORS, **pooling.OPERATORS, **resampling.OPERATORS, **nchwc.OPERATORS,
}  # fmt: skip


def normal(*shape, seed=0):
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def longs(*numbers):
    return np.array(numbers, np.int64)


def apply(operator, *inputs, opset=19, arithmetic=FP32, outputs=1, **attributes):
    """Return the outputs of one operator, a single one alone; arrays are exact."""
    given = [one if isinstance(one, Bounded) or one is None else exact(one) for one in inputs]
    names = tuple(f"y{index}" for index in range(outputs))
    own = Node(operator, operator, opset, attributes, tuple(f"x{i}" for i in range(len(given))), names)
    found = OPERATORS[operator](own, given, arithmetic)
    own.refuse_unasked()
    return found[0] if outputs == 1 else found


def on_runtime(operator, *inputs, opset=19, outputs=1, **attributes):
    """Return the same of ONNX Runtime's CPU provider."""
    runtime = pytest.importorskip("onnxruntime")
    options = runtime.SessionOptions()
    options.log_severity_level = 4
    fed = {f"x{index}": array for index, array in enumerate(inputs) if array is not None}
    names = ["" if array is None else f"x{index}" for index, array in enumerate(inputs)]
    domain, _, kind = operator.rpartition(".")
    made = [f"y{index}" for index in range(outputs)]
    graph = helper.make_graph(
        [helper.make_node(kind, names, made, domain=domain, **attributes)], "g",
        [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for n, a in fed.items()],
        [helper.make_tensor_value_info(name, 7 if index else 1, None) for index, name in enumerate(made)],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    session = runtime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    found = session.run(None, fed)
    return found[0] if outputs == 1 else found


def assert_within(expected, actual):
    """Every number within the bound, and the rounding of how it is stored."""
    assert expected.value.shape == actual.shape
    allowed = expected.errors() + STORED * np.abs(actual.astype(float))
    assert (np.abs(actual - expected.value) <= allowed).all()


def root_mean_square(expected, actual):
    """Return the deviation of a runtime in units of the expected one, where there is one."""
    rounds = expected.variance > 0
    return np.sqrt(np.mean((actual - expected.value)[rounds] ** 2 / expected.variance[rounds]))


def with_errors(array, size, seed=5):
    """Return numbers with errors that differ."""
    exactly = array.astype(float)
    errors = size * np.random.default_rng(seed).uniform(0.5, 1.5, array.shape)
    return Bounded(exactly, errors, variance=errors**2 / 3)


def moved(inputs, seed):
    """Return the inputs at a corner of what they may be."""
    rng = np.random.default_rng(seed)

    def one(given):
        if not isinstance(given, Bounded):
            return given
        return exact(given.value + rng.choice([-1.0, 1.0], given.value.shape) * given.error)

    return [one(given) for given in inputs]
