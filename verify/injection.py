"""The deviations of outputs another way: by injecting noise of each node's own size into float64 evaluations.

Propagation takes roundings for independent and functions for linear; injection needs neither, and many evaluations.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from onnx_attest.verify.arithmetic import Arithmetic
from onnx_attest.verify.oracle.graph import Evaluation

SAMPLES = 30
_QUARTILES = (25, 50, 75)


def cross_check(evaluate: Callable[..., Evaluation], arithmetic: Arithmetic, seed: int) -> str:
    """Return how injected noise spreads, in units of the propagated deviations, as a sentence.

    Raises:
        UnsupportedOperatorError: as `evaluate` does.
    """
    ratios = injected_over_propagated(evaluate, arithmetic, seed)
    if not ratios.size:
        return "no output has a deviation to be cross-checked"
    low, middle, high = np.percentile(ratios, _QUARTILES)
    return (
        f"noise injected at every node, {SAMPLES} times, spreads {middle:.2f} times as far as was propagated "
        f"(quartiles of {ratios.size} elements {low:.2f} to {high:.2f})"
    )


def injected_over_propagated(
    evaluate: Callable[..., Evaluation], arithmetic: Arithmetic, seed: int
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Return, for each element that has a deviation, the root mean square of injected errors over it.

    Raises:
        UnsupportedOperatorError: as `evaluate` does.
    """
    spreading, rng = replace(arithmetic, deviations=True), np.random.default_rng(seed)
    exact = {name: one for name, one in evaluate(spreading).outputs.items() if one.variance is not None}
    squares = {name: np.zeros(one.value.shape) for name, one in exact.items()}
    for _ in range(SAMPLES):
        shaken = evaluate(spreading, noise=rng).outputs
        for name, one in exact.items():
            squares[name] += (shaken[name].value - one.value) ** 2
    found = []
    for name, one in exact.items():
        variance = np.broadcast_to(one.variances(), one.value.shape)
        told = (variance > 0) & np.isfinite(squares[name])
        found.append(np.sqrt(squares[name][told] / SAMPLES / variance[told]))
    return np.concatenate(found) if found else np.zeros(0)
