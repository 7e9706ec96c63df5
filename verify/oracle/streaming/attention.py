"""The streaming attention as a whole: from operands and their errors to what is known of the output."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnx_attest.verify.arithmetic import Arithmetic
from onnx_attest.verify.oracle.blocks import one_thread_in_blas, side_by_side
from onnx_attest.verify.oracle.streaming.bound import bound_of, deviation_of
from onnx_attest.verify.oracle.streaming.masks import Masks, part_of
from onnx_attest.verify.oracle.streaming.operands import TAME, KeyHead, Queries
from onnx_attest.verify.oracle.streaming.panel import Panel
from onnx_attest.verify.oracle.streaming.scores import score
from onnx_attest.verify.oracle.streaming.sums import add_tile, fill_empty
from onnx_attest.verify.oracle.streaming.terms import Terms
from onnx_attest.verify.oracle.streaming.tiles import Workspace, panels, panels_at_a_time, room
from onnx_attest.verify.oracle.streaming.weights import Sums

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class OperandErrors:
    """Absolute errors that the operands of `attend` carry, each broadcastable to its operand; None is exact."""

    q: Floats | None = None
    k: Floats | None = None
    v: Floats | None = None
    bias: Floats | None = None
    scale: float = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class Attended:
    """What is known of an attention's output; float64.

    Attributes:
        value: o, (..., queries, d_v).
        bound: tau: no correct runtime is farther from o, (..., queries, d_v); inf where nothing is known.
        deviation: sigma of a correct runtime's error: sharp, not a bound, (..., queries, d_v).
        scale_direction: d o / d log(scale) = Cov_p(s q.K, V), (..., queries, d_v); exact to float32's accuracy
            relative to sum_j p_j |l_j - m||V_j|, or to sum_j p_j |l_j||V_j| where no |l_j| is beyond 24.
        log_sum_exp: log sum_j e^l_j, (..., queries); -inf in an empty row.
        top: max_j l_j, (..., queries); -inf in an empty row.
    """

    value: Floats
    bound: Floats
    deviation: Floats
    scale_direction: Floats
    log_sum_exp: Floats
    top: Floats


def attend(
    q: Floats,
    k: Floats,
    v: Floats,
    arithmetic: Arithmetic,
    *,
    scale: float,
    bias: Floats | None = None,
    allowed: NDArray[np.bool_] | None = None,
    causal: int | None = None,
    window: int | None = None,
    softcap: float = 0.0,
    empty_rows: str = "zero",
    errors: OperandErrors | None = None,
    rows: NDArray[np.intp] | None = None,
) -> Attended:
    """Return softmax(cap(scale q k^T) + bias) v with its bound, deviation and scale direction.

    Shapes: q (..., heads, queries, d), k (..., kv_heads, keys, d), v (..., kv_heads, keys, d_v), or two axes each;
    kv_heads divides heads, and query head h uses key head h // (heads / kv_heads). bias and allowed broadcast to
    (..., heads, queries, keys). cap(s) = softcap tanh(s / softcap); 0 leaves it out.

    Query i stands at position p = i + (causal or 0), or at rows[i] + (causal or 0) where `rows`, increasing, says which
    of many queries these are. With `causal`, the number of keys before the first query, it
    sees keys j <= p; with `window` only those with j > p - window. A mask of finite numbers is a bias like any
    other: a row in which one huge number hides every key has equal weights. A row with no key at all follows
    `empty_rows`: `zero`, `mean` of all values, or else NaN.

    Raises:
        ValueError: shapes that do not fit together.
    """
    if q.ndim == 2:
        whole = attend(
            q[None], k[None], v[None], arithmetic, scale=scale, bias=bias, allowed=allowed, causal=causal,
            window=window, softcap=softcap, empty_rows=empty_rows, errors=errors, rows=rows,
        )  # fmt: skip
        return Attended(*(getattr(whole, name)[0] for name in Attended.__slots__))
    errors = errors or OperandErrors()
    lead, (queries, d), keys = q.shape[:-2], q.shape[-2:], k.shape[-2]
    if k.shape[-1] != d or v.shape[-2] != keys or k.shape[-3] != v.shape[-3] or lead[-1] % k.shape[-3]:
        raise ValueError(f"q {q.shape}, k {k.shape} and v {v.shape} do not fit together")
    of_keys = (*lead[:-1], k.shape[-3], keys)
    full = (*lead, queries, keys)
    q_error, k_error, v_error = (
        _spread(errors.q, q.shape),
        _spread(errors.k, (*of_keys, d)),
        _spread(errors.v, (*of_keys, v.shape[-1])),
    )
    k, v = np.broadcast_to(k, (*of_keys, d)), np.broadcast_to(v, (*of_keys, v.shape[-1]))
    masks = Masks(
        _spread(allowed, full), _spread(bias, full), _spread(errors.bias, full), causal, window, keys, rows
    )
    terms = Terms.of(arithmetic, d, keys, scale, errors.scale, softcap, biased=bias is not None)
    result = Attended(
        *room((4, *lead, queries, v.shape[-1])),  # at once: page faults of each would take longer
        *(np.empty((*lead, queries)) for _ in range(2)),
    )
    group = lead[-1] // k.shape[-3]
    workspace, spare = Workspace.of_head(keys, d, v.shape[-1]), list[Workspace]()
    # Overflow and NaN belong to masked garbage and to bounds that say nothing; each is dealt with where it arises.
    with np.errstate(all="ignore"):
        for index in np.ndindex(k.shape[:-2]):
            members = [(*index[:-1], index[-1] * group + member) for member in range(group)]
            tame = max(1.0, abs(scale)) * max(float(np.abs(q[at]).max(initial=0.0)) for at in members) <= TAME
            head = KeyHead.of(
                k[index],
                v[index],
                part_of(k_error, index),
                part_of(v_error, index),
                terms,
                workspace,
                tame=tame,
                q_error=q_error is not None,
            )
            for at in members:
                own = Queries(q[at], part_of(q_error, at), masks.of_head(at))
                into = Attended(*(getattr(result, name)[at] for name in Attended.__slots__))

                def attend_panel(
                    part: slice, own: Queries = own, head: KeyHead = head, into: Attended = into
                ) -> None:
                    work = spare.pop() if spare else Workspace.of_panel(queries, keys)
                    _attend_panel(own, part, head, terms, empty_rows, work, into)
                    spare.append(work)

                _each(attend_panel, list(panels(queries, keys)), panels_at_a_time(keys))
    return result


def _each(attend_panel: Callable[[slice], None], parts: list[slice], most: int) -> None:
    """Attend all panels, at most so many at a time; one by one if the threads of BLAS are all cores'."""
    if one_thread_in_blas():
        side_by_side(attend_panel, parts, most)
        return
    for part in parts:
        attend_panel(part)


def _spread(array: Any, shape: tuple[int, ...]) -> Any:
    return None if array is None else np.broadcast_to(array, shape)


def _attend_panel(
    queries: Queries,
    rows: slice,
    head: KeyHead,
    terms: Terms,
    empty_rows: str,
    work: Workspace,
    into: Attended,
) -> None:
    """Write the rows of one head's result."""
    sums = Sums.zero(rows.stop - rows.start, head.factor.size, head.dtype)
    scores = score(queries, rows, head, terms, sums, work)
    panel = Panel.of(scores, queries, rows, head, terms)
    for tile in scores.tiles:
        add_tile(sums, panel, tile, head, terms, work)
    empty = panel.empty
    if not terms.known:
        sums.theta[:] = np.inf
    if empty.any():
        fill_empty(sums, panel, empty, head, terms, empty_rows)
    _finish(sums, panel, rows, head, terms, work, into)
    into.top[rows] = np.where(empty, -np.inf, panel.top[:, 0])
    shift = 0.0 if panel.shift is None else panel.shift[:, 0]
    into.log_sum_exp[rows] = np.where(empty, -np.inf, shift + np.log(sums.total[:, 0]))
    if empty_rows not in ("zero", "mean"):
        for array in (into.value, into.bound, into.deviation, into.scale_direction):
            array[rows][empty] = np.nan


def _finish(
    sums: Sums, panel: Panel, rows: slice, head: KeyHead, terms: Terms, work: Workspace, into: Attended
) -> None:
    """Write value, bound, deviation and direction from the sums."""
    o = sums.values / sums.total
    np.multiply(o, head.factor, out=into.value[rows])
    into.bound[rows] = bound_of(sums, panel, o, head, terms, work)
    into.deviation[rows] = deviation_of(sums, panel, o, head, terms)
    direction = sums.score * o
    np.subtract(sums.of_scores, direction, out=direction)
    np.multiply(direction, head.factor / sums.total, out=into.scale_direction[rows])
