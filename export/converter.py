"""The process that a file is converted in: python -m onnx_attest.export.converter KIND SOURCE TARGET.

Calibration inputs are the inputs-*.npz beside the target, arrays in the order of the graph's inputs; kept.json is the list
of values whose nodes are left in float32.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx

KEPT = "kept.json"


def _half(source: Path, target: Path, *, keep: tuple[str, ...] = ()) -> None:
    from onnxruntime.transformers.float16 import DEFAULT_OP_BLOCK_LIST, convert_float_to_float16

    model = onnx.load(source)
    converted = convert_float_to_float16(
        model, keep_io_types=bool(keep), op_block_list=[*DEFAULT_OP_BLOCK_LIST, *keep]
    )
    onnx.save(converted, target)


def _softmax_in_single(source: Path, target: Path) -> None:
    _half(source, target, keep=("Softmax",))


def _to_be_quantised(source: Path) -> onnx.ModelProto:
    """Return a model in an IR version whose tensors need not be inputs too: those that a quantiser adds are none."""
    model = onnx.load(source)
    model.ir_version = max(model.ir_version, _WITHOUT_INPUTS)
    return model


_WITHOUT_INPUTS = 4


def _dynamic(source: Path, target: Path) -> None:
    from onnxruntime.quantization import QuantType, quantize_dynamic

    quantize_dynamic(_to_be_quantised(source), target, weight_type=QuantType.QInt8)


def _static(source: Path, target: Path) -> None:
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

    model = _to_be_quantised(source)
    # In IR version 3 and before, tensors of the file are inputs too, and nobody feeds them.
    own = {tensor.name for tensor in model.graph.initializer}
    names = [value.name for value in model.graph.input if value.name not in own]
    kept = set(json.loads((target.parent / KEPT).read_text()))
    excluded = [node for node in model.graph.node if not kept.isdisjoint(node.output)]
    for index, node in enumerate(excluded):  # the quantiser knows nodes by their names, and not each has one
        node.name = node.name or f"{node.op_type}_kept_{index}"

    class Given(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self._paths = iter(sorted(target.parent.glob("inputs-*.npz")))

        def get_next(self) -> dict[str, Any] | None:
            path = next(self._paths, None)
            if path is None:
                return None
            with np.load(path) as file:
                return {name: file[f"arr_{index}"] for index, name in enumerate(names)}

    quantize_static(
        model,
        target,
        Given(),
        quant_format=QuantFormat.QDQ,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
        nodes_to_exclude=[node.name for node in excluded],
    )


def _fused(source: Path, target: Path) -> None:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(target)
    # Beyond this level the layout is that of this very machine.
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    onnxruntime.InferenceSession(str(source), options, providers=["CPUExecutionProvider"])


KINDS: dict[str, Callable[[Path, Path], None]] = {
    "fp16": _half,
    "fp16-softmax32": _softmax_in_single,
    "int8-dynamic": _dynamic,
    "int8-static": _static,
    "ort-fused": _fused,
}
"""What a file can be made into: by name, how."""


def main() -> None:
    """Convert as the command line says."""
    kind, source, target = sys.argv[1:]
    KINDS[kind](Path(source), Path(target))


if __name__ == "__main__":
    main()
