"""Pass 1: the logits of a panel of query rows, their maxima, and what the tiles of pass 2 need of each row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from onnx_attest.verify.oracle.bounded import HUGE
from onnx_attest.verify.oracle.streaming.masks import Masks
from onnx_attest.verify.oracle.streaming.operands import KeyHead, Queries
from onnx_attest.verify.oracle.streaming.terms import FUNCTION, Terms
from onnx_attest.verify.oracle.streaming.tiles import Workspace, relative_loss

Array = NDArray[Any]
Floats = NDArray[np.float64]


@dataclass(slots=True, eq=False)
class Panel:
    """The logits of some query rows, and what a tile of them needs; rows are (rows, 1)."""

    logits: Floats  # (rows, width)
    raw: Array | None  # s q.K, where that is not the logit itself
    bias: Any
    bias_error: Any
    huge: bool  # whether some bias may absorb a score
    first: int  # key of the first column
    clear: tuple[int, int]  # columns in which no key is hidden
    empty: NDArray[np.bool_]  # (rows,): rows without a key
    top: Floats  # finite: 0 in an empty row
    top_short: Array
    keys: Floats  # n_eff
    sizes: Array  # left factor of W's size-product
    squares: Array  # left factor of q^2.K^2 and of what v has for the whole row
    shift: Array  # of v's polynomial in m - l
    extra: Array  # kappa (u_acc^2 (n + 1) / 6 + 2 u_p^2) over v's unit, of p^2 V^2
    most: float  # no W of a plain panel is larger, in units of W
    widest: float  # at this distance below the top a key has no weight, whatever its error
    spread_unit: float  # v = this times what the tiles compute
    unit: float  # W, likewise


def form_panel(queries: Queries, rows: slice, head: KeyHead, terms: Terms, work: Workspace) -> Panel:
    """Write the logits of a panel of query rows and find their maxima: pass 1."""
    masks, q = queries.masks, queries.q[rows]
    low, high = masks.span(rows.start, rows.stop) if head.finite else (0, masks.keys)
    part, scaled = np.s_[rows, low:high], q * terms.scale
    logits, raw, huge = _logits(scaled, head.keys[low:high], masks, part, head.dtype, terms, work)
    largest = float(np.sqrt((scaled * scaled).sum(1).max(initial=0.0))) * head.key_norm
    top = logits.max(1, keepdims=True, initial=-np.inf)
    clear = tuple(min(max(edge - low, 0), high - low) for edge in masks.clear(rows.start, rows.stop))
    if clear == (0, high - low) and largest < -terms.arithmetic.masked_below:
        keys = np.full_like(top, high - low)
    else:
        keys = (logits >= terms.arithmetic.masked_below).sum(1, keepdims=True).astype(float)
    keys[keys == 0] = masks.keys  # a row masked with finite numbers is summed whole
    empty = np.isneginf(top)
    top[empty] = 0.0
    sizes = np.abs(q)
    if queries.error is not None:
        sizes = np.concatenate((sizes, queries.error[rows]), axis=1)
    sizes = np.concatenate((sizes, np.ones_like(top)), axis=1)
    sizes, unit = sizes.astype(head.dtype), terms.unit
    unit *= 1 + relative_loss(sizes.shape[1], head.dtype)
    most = float(np.sqrt((sizes * sizes).sum(1).max(initial=0.0))) * head.size_norm
    most += (terms.raw + terms.capped + 2 * terms.stored + 2) * largest
    if masks.bias_error is not None:
        most += terms.bias * float(masks.bias_error[part].max(initial=0.0))
    a, n_1 = terms.arithmetic, keys + 1
    ratio = (a.u_acc / a.u) ** 2
    score = terms.score + 1 if terms.plain else 1.0
    of_row = FUNCTION + (terms.score * top * top if terms.plain else 0.0 * top)
    squares = np.concatenate((scaled * scaled, of_row), axis=1) / score
    return Panel(
        logits=logits, raw=raw, first=low, clear=(clear[0], clear[1]), empty=empty[:, 0],
        top=top, top_short=top.astype(head.dtype), keys=keys,
        bias=None if masks.bias is None else masks.bias[part],
        bias_error=None if masks.bias_error is None else masks.bias_error[part],
        huge=huge, sizes=sizes, squares=squares.astype(head.dtype),
        shift=(2 * terms.score / score * top).astype(head.dtype),
        extra=((ratio * n_1 / 6 + 2 * (a.u_p / a.u) ** 2) / score).astype(head.dtype),
        most=most, unit=unit, spread_unit=terms.variance * score,
        # Of the distance itself, W counts less than a quarter. Finite, so that -inf is beyond it.
        widest=min(1e300, 1.5 * (1000 + unit * (most + terms.stored * float(np.abs(top).max(initial=0.0))))),
    )  # fmt: skip


def _logits(
    scaled: Floats, keys: Floats, masks: Masks, part: tuple[slice, slice], dtype: DTypeLike, terms: Terms,
    work: Workspace,
) -> tuple[Floats, Array | None, bool]:  # fmt: skip
    """Return a panel's logits, s q.K where that is something else, and whether a bias may absorb some of it."""
    shape, raw, huge = (len(scaled), len(keys)), None, False
    logits = np.matmul(scaled, keys.T, out=work.take("logits", shape))
    if not terms.plain:
        raw = work.take("raw", shape, dtype)
        np.copyto(raw, logits, casting="same_kind")
    if terms.softcap:
        logits /= terms.softcap
        np.tanh(logits, out=logits)
        logits *= terms.softcap
    if masks.bias is not None:
        logits += masks.bias[part]
        # so written that a NaN counts as huge: it only costs time
        huge = not (logits.min(initial=0.0) > HUGE / -2 and logits.max(initial=0.0) < HUGE / 2)
    masks.hide(logits, part[0].start, part[1].start)
    return logits, raw, huge
