"""What pass 2 needs of each row of a panel, beside its tiles."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnx_attest.verify.oracle.streaming.operands import KeyHead, Queries
from onnx_attest.verify.oracle.streaming.scores import Scores
from onnx_attest.verify.oracle.streaming.terms import FUNCTION, Terms
from onnx_attest.verify.oracle.streaming.tiles import relative_loss

Array = NDArray[Any]
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Panel:
    """Some query rows between pass 1 and pass 2; what belongs to a row is (rows, 1), or (1, 1) if all are equal.

    The tiles compute from l - c; of m - l, what m - c makes is a constant of the row and goes through the products.
    """

    scores: Scores
    bias: Any
    bias_error: Any
    empty: NDArray[np.bool_]  # (rows,): rows without a key
    top: Floats  # m; finite: 0 in an empty row
    shift: Floats | None  # c, None if it is 0
    shift_short: Array | None
    sizes: Array  # left factor of W's size-product and of its constant
    squares: Array  # left factor of q^2.K^2 and of v's constant
    linear: Array  # of v's polynomial in l - c
    extra: Array  # kappa (u_acc^2 (n + 1) / 6 + 2 u_p^2) over v's unit, of p^2 V^2
    most: float  # no W of a plain panel is larger, in units of W
    widest: float  # at this distance below the top a key has no weight, whatever its error
    spread_unit: float  # v = this times what the tiles compute
    unit: float  # W, likewise

    @classmethod
    def of(cls, scores: Scores, queries: Queries, rows: slice, head: KeyHead, terms: Terms) -> Panel:
        """Multiply the coefficients into the queries and collect the constants of the rows."""
        a, masks, empty = terms.arithmetic, queries.masks, np.isneginf(scores.top)
        top = np.where(empty, 0.0, scores.top)
        shift = top if scores.shifted else None
        low = scores.tiles[0].keys.start if scores.tiles else 0
        part = np.s_[rows, low : low + sum(tile.x.shape[1] for tile in scores.tiles)]
        bias_error = None if masks.bias_error is None else masks.bias_error[part]
        sizes = np.abs(queries.q[rows])
        if queries.error is not None:
            sizes = np.concatenate((sizes, queries.error[rows]), axis=1)
        most = float(np.sqrt((sizes * sizes).sum(1).max(initial=0.0))) * head.size_norm + terms.constant
        most += (terms.raw + terms.capped + 2 * terms.stored + 2) * scores.largest
        if bias_error is not None:
            most += terms.bias * float(bias_error.max(initial=0.0))
        lost = relative_loss(sizes.shape[1] + 1, head.dtype)
        if shift is None:
            # W is summed from |m|, |l| and others where it has m - l. As |m| + |l| <= (m - l) + 2 |l| and raw >= 1, the
            # summands are 3 W at most, and what float32 loses of them is relative to that.
            lost *= 3
        unit = terms.unit * (1 + lost)
        # m - c, by which m - l is more than -x
        sizes = np.concatenate((sizes, terms.constant + (top if shift is None else 0.0 * top)), axis=1)
        linear, constant = _polynomial(top, shift, terms)
        score = terms.score + 1 if terms.plain else 1.0  # the unit of v, so that x^2 has none
        squares = np.concatenate((scores.scaled * scores.scaled, constant), axis=1) / score
        extra = (a.u_acc / a.u) ** 2 * (scores.keys + 1) / 6 + 2 * (a.u_p / a.u) ** 2
        return cls(
            scores=scores,
            bias=None if masks.bias is None else masks.bias[part], bias_error=bias_error, empty=empty[:, 0],
            top=top, shift=shift, shift_short=None if shift is None else shift.astype(head.dtype),
            sizes=sizes.astype(head.dtype), squares=squares.astype(head.dtype),
            linear=(linear / score).astype(head.dtype), extra=(extra / score).astype(head.dtype),
            most=most, unit=unit, spread_unit=terms.variance * score,
            # Of the distance itself, W counts less than a quarter. Finite, so that -inf is beyond it.
            widest=min(1e300, 1.5 * (1000 + unit * (most + terms.stored * float(np.abs(top).max(initial=0.0))))),
        )  # fmt: skip


def _polynomial(top: Floats, shift: Floats | None, terms: Terms) -> tuple[Floats, Floats]:
    """Return the linear coefficient and the constant of v's polynomial in x = l - c, that of x^2 being score + 1.

    It is score l^2 + (m - l)^2 + FUNCTION where a logit is a scaled product and nothing else; elsewhere tiles add it.
    """
    if not terms.plain:
        return 0.0 * top, FUNCTION + 0.0 * top
    if shift is None:
        return -2 * top, FUNCTION + top * top
    return 2 * terms.score * top, FUNCTION + terms.score * top * top
