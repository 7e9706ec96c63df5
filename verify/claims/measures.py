"""What is measured of a statement: pure functions of arrays, each of which can fail."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from onnx_attest.verify.arithmetic import PROFILES, Arithmetic, gamma
from onnx_attest.verify.oracle import bounded
from onnx_attest.verify.oracle.attention import row_limit
from onnx_attest.verify.oracle.bounded import exact

Array = NDArray[Any]
_SDS = 4.0
_AGREES = 0.01
_SOLVED, _STALLED = 0.9, 0.5


class Measured(NamedTuple):
    """Numbers, and why they do not bear the statement out ("" if they do)."""

    numbers: dict[str, float | None]
    wrong: str = ""
    note: str = ""


def products(scores: Array, Q: Array, K: Array, scale: float, arithmetic: Arithmetic) -> Measured:
    """Hold scores (batch, queries, keys) against scale q.k, and its bound."""
    exact_products = bounded.multiply(
        bounded.matmul(exact(Q), exact(K.swapaxes(-1, -2)), arithmetic), exact([scale]), arithmetic
    )
    error = np.abs(scores.astype(np.float64) - exact_products.value)
    ratio = float((error / exact_products.errors()).max())
    numbers: dict[str, float | None] = {"max_abs_err": float(error.max()), "max_err_over_bound": ratio}
    return Measured(numbers, "" if ratio <= 1 else f"a score is {ratio:.3g} times its bound off")


def directions(scores: Array, Q: Array, K: Array) -> Measured:
    """Say for how many queries the highest score is that of the key at the smallest angle; all vectors of length 1."""
    angle = np.arccos(np.clip(np.einsum("bqd,bkd->bqk", Q.astype(np.float64), K.astype(np.float64)), -1, 1))
    share = float((scores.argmax(-1) == angle.argmin(-1)).mean())
    return Measured(
        {"nearest_has_highest_score": share},
        "" if share == 1 else f"for {1 - share:.1%} of the queries it is not",
    )


def variances(bare: Array, scaled: Array, d_k: int) -> Measured:
    """Hold the variance of scores (batch, n, n) of gaussian vectors against d_k, and of scaled ones against 1.

    The mean of s_ij^2 over n queries and n keys, of which each is used n times, has the relative variance
    2 (1 / (n d) + 1 / (n d) + 1 / n^2) for each sequence.
    """
    batch, n, _ = bare.shape
    deviation = math.sqrt(2 * (2 / (n * d_k) + 1 / n**2) / batch)
    numbers: dict[str, float | None] = {
        "variance": float((bare.astype(np.float64) ** 2).mean()),
        "variance_over_d_k": float((bare.astype(np.float64) ** 2).mean() / d_k),
        "variance_scaled": float((scaled.astype(np.float64) ** 2).mean()),
        "sd_of_the_estimate": deviation,
    }
    off = [
        name
        for name in ("variance_over_d_k", "variance_scaled")
        if abs((numbers[name] or 0.0) - 1) > _SDS * deviation
    ]
    return Measured(numbers, f"{' and '.join(off)} is not 1 within four deviations" if off else "")


def saturation(bare: Array, scaled: Array, before: float | None) -> Measured:
    """Compare weights (..., keys) without and with the scale; `before` is the entropy without it at the last d_k."""
    numbers: dict[str, float | None] = {}
    for name, weights in (("", bare), ("_scaled", scaled)):
        p = weights.astype(np.float64)
        numbers[f"p_max{name}"] = float(p.max(-1).mean())
        numbers[f"entropy{name}"] = float(-(p * np.log(np.where(p > 0, p, 1.0))).sum(-1).mean())
        numbers[f"jacobian{name}"] = float(_jacobian_norm(p).mean())
    entropy, other = numbers["entropy"] or 0.0, numbers["entropy_scaled"] or 0.0
    falls = entropy < other and (before is None or entropy < before)
    return Measured(numbers, "" if falls else "the entropy without the scale does not fall")


def _jacobian_norm(p: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the Frobenius norm of diag(p) - p p^T: sum p^2 - 2 sum p^3 + (sum p^2)^2, without forming it."""
    second = (p**2).sum(-1)
    return np.asarray(np.sqrt(np.maximum(second - 2 * (p**3).sum(-1) + second**2, 0.0)))


def learning(solved_scaled: float, solved: float) -> str:
    """Return why the training does not show what the scale is for, "" if it does."""
    if solved_scaled < _SOLVED:
        return f"with the scale {solved_scaled:.0%} of the items were solved"
    return "" if solved < _STALLED else f"without the scale {solved:.0%} of the items were solved"


def row_sums(weights: Array, arithmetic: Arithmetic) -> Measured:
    """Hold the sums of rows (..., keys) against 1, and the bound of their rounding."""
    u = max(arithmetic.u_out, arithmetic.u_p)
    error = float(np.abs(weights.astype(np.float64).sum(-1) - 1).max())
    limit = row_limit(weights.shape[-1], arithmetic)
    numbers: dict[str, float | None] = {"row_sum_err_u": error / u, "limit_u": limit / u}
    return Measured(numbers, "" if error <= limit else f"a row sums to 1 only within {error:.3g}")


LARGEST = {"float16": PROFILES["fp16-unfused"].largest, "float32": PROFILES["fp32"].largest}


def overflow(
    works: Callable[[float], bool], stable: Callable[[float], bool], kept: str, equal_keys: int
) -> Measured:
    """Find the score at which the naive softmax breaks, and hold it against the predicted one.

    Args:
        works: whether the naive softmax gives rows that sum to 1, at a score.
        stable: whether the other one does.
        kept: the format that the exponentials are seen to be kept in.
        equal_keys: how many keys have the score; their exponentials are summed.
    """
    predicted = math.log(LARGEST[kept]) - math.log(equal_keys)
    low, high = 0.0, 4 * predicted
    numbers: dict[str, float | None] = {"breaks_at": None, "predicted": predicted, "over_predicted": None}
    if works(high):
        note = f"never broke, up to a score of {high:.4g}: the runtime rewrites the naive form"
        return Measured(numbers, note=note)
    while high - low > 1e-4 * predicted:
        middle = (low + high) / 2
        low, high = (middle, high) if works(middle) else (low, middle)
    numbers |= {"breaks_at": high, "over_predicted": high / predicted}
    wrong = [] if abs(high / predicted - 1) <= _AGREES else [f"it breaks at {high:.4g}, not {predicted:.4g}"]
    if not stable(2 * high):
        wrong.append(f"the stable softmax fails at {2 * high:.4g}")
    return Measured(numbers, "; ".join(wrong), f"exponentials kept in {kept}")


def hull(output: Array, V: Array, arithmetic: Arithmetic) -> Measured:
    """Say by how much an output (batch, queries, d_v) leaves the range of the values, over the rounding of the sums."""
    y, v = output.astype(np.float64), V.astype(np.float64)
    low, high = v.min(-2, keepdims=True), v.max(-2, keepdims=True)
    outside = np.maximum(np.maximum(low - y, y - high), 0.0)
    slack = 2 * gamma(v.shape[-2] + 2, arithmetic.u_acc) * np.abs(v).max(-2, keepdims=True)
    ratio = float((outside / slack).max())
    numbers: dict[str, float | None] = {"outside_over_slack": ratio, "d_v": float(output.shape[-1])}
    wrong = (
        "" if ratio <= 1 else f"an output leaves the range of the values by {ratio:.3g} times the rounding"
    )
    return Measured(
        numbers, wrong or ("" if output.shape[-1] == V.shape[-1] else "the output has not size d_v")
    )


def reach(changed: NDArray[np.bool_], *, causal: bool) -> Measured:
    """Hold which output row changed with which input row, (rows out, rows in), against who sees whom."""
    sees = np.tril(np.ones_like(changed)) if causal else np.ones_like(changed)
    numbers: dict[str, float | None] = {
        "seen_rows_that_reach": float(changed[sees].mean()),
        "unseen_rows_that_reach": float(changed[~sees].mean()) if causal else None,
    }
    if not changed[sees].all():
        return Measured(numbers, "a token does not reach a row that sees it")
    return Measured(numbers, "a token reaches a row before it" if changed[~sees].any() else "")
