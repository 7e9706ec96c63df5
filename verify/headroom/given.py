"""The logits that a case gives to each softmax of a graph, in float64."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from onnx_attest.verify.arithmetic import PROFILES, largest_of
from onnx_attest.verify.finder.found import Softmax
from onnx_attest.verify.oracle.graph import GraphOracle
from onnx_attest.verify.oracle.kernels import VALUES_ALONE
from onnx_attest.verify.oracle.ops.operator import UnsupportedOperatorError
from onnx_attest.verify.runtimes.base import Tensors

Floats = NDArray[np.float64]
_VALUES = replace(PROFILES["fp64"], kernel=VALUES_ALONE)


def given_logits(
    oracle: GraphOracle, softmaxes: Sequence[Softmax], inputs: Tensors
) -> Mapping[str, Floats] | str:
    """Return the logits by the name of the weights, -inf where a mask hides a key; or why they are not known.

    Inside an operator they have the shape that the oracle gives them; one that it does not recognise is left out.
    """
    names = [one.logits for one in softmaxes if one.logits]
    # What goes on inside an operator is seen along with its bound only.
    arithmetic = _VALUES if len(names) == len(softmaxes) else PROFILES["fp64"]
    try:
        seen = oracle.evaluate(
            {name: inputs[name] for name in oracle.inputs},
            arithmetic,
            observed={name: np.zeros(0) for name in names},
            follow=False,
        )
    except UnsupportedOperatorError as error:
        return f"the graph cannot be evaluated: {error}"
    inside = {one.output_name: one.facts.logits for one in seen.attentions}
    values = {name: one.value for name, one in seen.observed.items() if one.is_float}
    values |= {name: inputs[name].astype(np.float64) for name in names if name in inputs}
    found = {
        one.weights: inside.get(one.weights) if not one.logits else values.get(one.logits)
        for one in softmaxes
    }
    return {name: value for name, value in found.items() if value is not None}


def without_hidden(rows: Floats, dtype: np.dtype[np.generic]) -> Floats:
    """Return the rows (rows, keys) that have a key, with -inf for what a mask hides: half of the lowest number, or less."""
    hidden = rows < -largest_of(dtype) / 2
    shown = np.where(hidden, -np.inf, rows)
    return np.asarray(shown[~hidden.all(-1) & ~np.isnan(rows).any(-1)])
