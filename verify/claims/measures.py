"""What is measured of a statement: pure functions of arrays, each of which can fail."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnx_attest.verify.arithmetic import PROFILES, Arithmetic, gamma
from onnx_attest.verify.claims.fit import Exponent, fitted_exponent
from onnx_attest.verify.claims.measured import Measured
from onnx_attest.verify.metamorphic.evidence import Evidence
from onnx_attest.verify.oracle import bounded
from onnx_attest.verify.oracle.attention import row_limit
from onnx_attest.verify.oracle.bounded import exact

Array = NDArray[Any]
_SDS = 4.0
_AGREES = 0.01
_SOLVED, _STALLED = 0.9, 0.5


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


FEWEST = 3
"""Points that an exponent can be fitted to."""
_FLOAT_BYTES = 4


def time_growth(seconds: Mapping[int, float], d_head: int) -> Measured:
    """Fit the exponent of the time of one head, and say whether 2 is the nearest whole one.

    The products Q K^T and P V are 2 n^2 d multiplications and additions each, so 4 n^2 d beside a softmax of n^2.

    Args:
        seconds: of a call by its number n of tokens, at least three.
        d_head: width of queries, keys and values.
    """
    longest = max(seconds)
    exponent = fitted_exponent(list(seconds), list(seconds.values()))
    rate = 4 * longest**2 * d_head / seconds[longest] / 1e9
    numbers = {**_numbers(exponent), "gflop_per_s_at_longest": rate}
    return Measured(numbers, unclear=_unlike(exponent, "the time", 1.5, 2.5))


def memory_growth(peak_bytes: Mapping[int, float], *, fused: bool) -> Measured:
    """Fit the exponent of the memory of one head in float32, and count how many score matrices it is.

    Whoever keeps a score matrix holds 4 n^2 bytes and grows as n^2; a fused kernel that goes through the keys in blocks
    holds what the output takes, n, or buffers of one size.

    Args:
        peak_bytes: held at once during a call, by its number n of tokens, at least three.
        fused: whether the attention is one operator.
    """
    longest = max(peak_bytes)
    exponent = fitted_exponent(list(peak_bytes), list(peak_bytes.values()))
    matrices = peak_bytes[longest] / (_FLOAT_BYTES * longest**2)
    numbers = {
        **_numbers(exponent),
        "peak_mib_at_longest": peak_bytes[longest] / 2**20,
        "score_matrices": matrices,
    }
    if exponent is None and fused and matrices < 1:  # so little that pages do not show it
        return Measured(numbers, note="too little to fit an exponent to")
    least, most = (-math.inf, 1.5) if fused else (1.5, 2.5)
    unlike = _unlike(exponent, "the memory", least, most)
    if not unlike:
        return Measured(numbers)
    held = "the scores are held whole" if matrices >= 1 else "the scores are never held whole"
    return Measured(numbers, unclear=f"{unlike}; {held}")


def _numbers(exponent: Exponent | None) -> dict[str, float | None]:
    value, low, high = exponent or (None, None, None)
    return {"exponent": value, "exponent_low": low, "exponent_high": high}


def _unlike(exponent: Exponent | None, what: str, least: float, most: float) -> str:
    """Return why an interval is not between two limits, "" if it is."""
    if exponent is None:
        return f"{what} is too little to fit an exponent to"
    if least < exponent.low and exponent.high < most:
        return ""
    outside = exponent.high <= least or exponent.low >= most
    return (
        f"{what} grows as n^{exponent.value:.2f}"
        if outside
        else f"the interval of {what} is too wide to tell"
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


def saturation(bare: Array, scaled: Array, before: Mapping[str, float | None]) -> Measured:
    """Compare weights (..., keys) without and with the scale.

    Largest weight and entropy are means over the rows. Of the norm of the Jacobian, through which every gradient passes,
    the mean is that of the few rows in which two keys are level; the median is that of a usual row.

    Args:
        bare: without the scale.
        scaled: with it.
        before: what this returned for the last, smaller d_k; empty for the first.
    """
    numbers: dict[str, float | None] = {}
    for name, weights in (("", bare), ("_scaled", scaled)):
        p = weights.astype(np.float64)
        norms = _jacobian_norm(p)
        numbers[f"p_max{name}"] = float(p.max(-1).mean())
        numbers[f"entropy{name}"] = float(-(p * np.log(np.where(p > 0, p, 1.0))).sum(-1).mean())
        numbers[f"jacobian_mean{name}"] = float(norms.mean())
        numbers[f"jacobian_median{name}"] = float(np.median(norms))
    wrong = (
        []
        if _below(numbers["entropy"], numbers["entropy_scaled"])
        else ["the entropy is no lower without it"]
    )
    for name, sign in (("entropy", 1), ("jacobian_median", 1), ("p_max", -1)):
        now, last = numbers[name], before.get(name)
        if last is not None and now is not None and not sign * now < sign * last:
            wrong.append(f"{name} does not {'fall' if sign > 0 else 'rise'} without the scale")
    return Measured(numbers, "; ".join(wrong))


def _below(one: float | None, other: float | None) -> bool:
    return one is not None and other is not None and one < other


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


def from_the_input(first: Array, second: Array, again: Array, allowed: Array) -> Measured:
    """Hold the weights of two inputs (..., queries, keys) against each other, and against those of the first once more.

    Args:
        first: weights of one input.
        second: weights of another.
        again: weights of the first input in another run.
        allowed: sum of the bounds of both inputs: what rounding can make of equal weights.
    """
    ratio = _difference(first, second) / allowed
    repeated = float((_difference(first, again) / allowed).max())
    numbers: dict[str, float | None] = {
        "max_difference": float(_difference(first, second).max()),
        "rows_that_differ": float((ratio > 1).any(-1).mean()),
        "least_row_difference_over_bound": float(ratio.max(-1).min()),
        "repeated_over_bound": repeated,
    }
    if not (ratio > 1).any(-1).all():
        return Measured(numbers, "a row of weights is the same for another input")
    return Measured(numbers, "" if repeated <= 1 else "the same input gives other weights")


def _difference(one: Array, other: Array) -> NDArray[np.float64]:
    return np.abs(one.astype(np.float64) - other.astype(np.float64))


def in_any_order(evidence: Evidence, *, causal: bool) -> Measured:
    """Say whether other places of the tokens are other places of the rows; not so where a token knows its place.

    Args:
        evidence: of the relation that the rows of permuted tokens are the permuted rows.
        causal: whether a mask says who comes after whom: then it must not hold.
    """
    numbers: dict[str, float | None] = {
        "other_bits": evidence.differing / evidence.elements,
        "max_difference": evidence.largest,
        "difference_over_bound": evidence.over_bound,
    }
    if evidence.holds == "unknown":
        return Measured(numbers, unclear=evidence.text)
    follows = evidence.holds in ("bitwise", "rounding")
    if causal:
        return Measured(
            numbers, "a causal mask makes no difference" if follows else "", "does not hold, as it must"
        )
    note = "bit by bit" if evidence.holds == "bitwise" else "within rounding"
    return Measured(numbers, "" if follows else evidence.text, note)


def edges(weights: Array, mask: NDArray[np.bool_], arithmetic: Arithmetic) -> Measured:
    """Say whether weights (1, queries, keys) are a graph: an edge to each token that the mask shows, and no other.

    What leaves a node sums to 1 within the rounding of a sum.
    """
    p = weights.astype(np.float64)
    sums = float(np.abs(p.sum(-1) - 1).max())
    numbers: dict[str, float | None] = {
        "nodes": float(p.shape[-1]),
        "edges": float((p > 0).sum()),
        "edges_that_the_mask_shows": float(mask.sum()),
        "largest_weight": float(p.max()),
        "smallest_weight": float(p[p > 0].min(initial=np.inf)),
    }
    if not np.array_equal(p > 0, mask):
        return Measured(numbers, "the edges are not those that the mask shows")
    limit = row_limit(p.shape[-1], arithmetic)
    return Measured(numbers, "" if sums <= limit else f"what leaves a token sums to 1 only within {sums:.3g}")
