"""NonMaxSuppression: greedy, so that each of its decisions has to be certain in every correct runtime."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from onnx_attest.verify.arithmetic import Arithmetic, gamma
from onnx_attest.verify.oracle.bounded import Bounded, Floats, exact
from onnx_attest.verify.oracle.ops.moves.moving import only
from onnx_attest.verify.oracle.ops.operator import (
    Inputs,
    Node,
    Operator,
    UnsupportedOperatorError,
    optional,
    required,
)

Flags = NDArray[np.bool_]
_SINGLE, _FLUSHED = 2.0**-24, 2.0**-126


@dataclass(frozen=True)
class _Boxes:
    """The sides of boxes, (2, boxes) each: the lower and upper end along both axes, and how far these may be off."""

    low: Floats
    high: Floats
    error: Floats
    u: float

    def overlapping(self, chosen: int, threshold: Bounded) -> tuple[Flags, Flags]:
        """Return which boxes overlap the chosen one by more than the threshold, for certain and possibly.

        The quotient of overlap and union is compared as overlap > threshold * union. Each length is rounded once, a
        product of two of them has gamma_3, or is flushed; the union has two roundings more, and the quotient one.
        """
        one = np.s_[:, chosen, None]
        reach = np.minimum(self.high, self.high[one]) - np.maximum(self.low, self.low[one])
        slack = self.error + self.error[one]
        inner = [_area(np.maximum(reach + side * slack, 0.0)) for side in (-1, 1)]
        areas = [_area(np.maximum(self.high - self.low + 2 * side * self.error, 0.0)) for side in (-1, 1)]
        share = gamma(3, self.u)
        low, high = inner[0] * (1 - share) - _FLUSHED, inner[1] * (1 + share) + _FLUSHED
        both = [area + area[chosen] for area in areas]
        union = (
            both[0] * (1 - gamma(5, self.u)) - high * (1 + self.u) - 2 * _FLUSHED,
            both[1] * (1 + gamma(5, self.u)) - low * (1 - self.u) + 2 * _FLUSHED,
        )
        limit, error = float(threshold.value), float(threshold.errors())
        apart = inner[1] <= 0  # runtimes look at the ends first: no rounding makes such boxes overlap
        certainly = low * (1 - self.u) > (limit + error) * union[1]
        possibly = high * (1 + self.u) > max(limit - error, 0.0) * np.maximum(union[0], 0.0)
        if self.u == _SINGLE and not error:
            known, exceeds = self._known(reach, both[0], slack, limit)
            certainly, possibly = np.where(known, exceeds, certainly), np.where(known, exceeds, possibly)
        return certainly & ~apart, possibly & ~apart

    def _known(self, reach: Floats, areas: Floats, slack: Floats, limit: float) -> tuple[Flags, Flags]:
        """Return where float32 rounds nothing but the quotient, and whether that exceeds the limit there."""
        inner = _area(np.maximum(reach, 0.0))
        union = areas - inner
        steps = (*reach, *(self.high - self.low), inner, _area(self.high - self.low), areas, union)
        exact = np.all([_is_single(step) for step in steps], axis=0)
        quotient = np.divide(inner, union, out=np.zeros_like(inner), where=union > 0)
        return exact & ~slack.any(0), quotient.astype(np.float32).astype(np.float64) > limit


def _is_single(step: Floats) -> Flags:
    return np.asarray((step == step.astype(np.float32)) & ((step == 0) | (np.abs(step) >= _FLUSHED)))


def _area(sides: Floats) -> Floats:
    return np.asarray(sides[0] * sides[1])


def _boxes(corners: Bounded, u: float, *, centred: bool) -> _Boxes:
    """Return the boxes of one batch: two opposite corners, or a centre and a size, halved without rounding."""
    columns = corners.value.T
    errors = np.broadcast_to(np.asarray(corners.errors()), corners.value.shape).T
    first, second = columns[:2], columns[2:]
    if not centred:
        return _Boxes(
            np.minimum(first, second), np.maximum(first, second), np.maximum(errors[:2], errors[2:]), u
        )
    low, high = first - second / 2, first + second / 2
    given = errors[:2] + errors[2:] / 2
    return _Boxes(low, high, given + u * (np.maximum(np.abs(low), np.abs(high)) + given), u)


def _non_max_suppression(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Bounded]:
    boxes, scores = required(inputs, 0), required(inputs, 1)
    most = only(inputs, 2, 0)
    threshold = (optional(inputs, 3) or exact([0.0])).moved(lambda array: array.reshape(()))
    least = optional(inputs, 4)
    centred = bool(node.get("center_point_box", 0))
    if np.isnan(scores.value).any() or not np.isfinite(boxes.value).all():
        raise UnsupportedOperatorError("NonMaxSuppression of boxes or scores that are no numbers")
    u = max(arithmetic.u, arithmetic.u_s)
    selected = []
    for batch in range(scores.value.shape[0]):
        sides = _boxes(_part(boxes, batch), u, centred=centred)
        for kind in range(scores.value.shape[1]):
            chosen = _selected(sides, _part(_part(scores, batch), kind), threshold, least, most)
            selected += [(batch, kind, box) for box in chosen]
    return [Bounded(np.array(selected, np.int64).reshape(-1, 3))]


def _part(a: Bounded, index: int) -> Bounded:
    return a.moved(lambda array: array[index])


def _selected(
    boxes: _Boxes, scores: Bounded, threshold: Bounded, least: Bounded | None, most: int
) -> Iterator[int]:
    """Yield the boxes of a class, best first.

    Raises:
        UnsupportedOperatorError: rounding decides which box comes next, or whether it is in: the score may be equal to
            the threshold, where the text of the standard keeps it and its reference does not.
    """
    score, error = scores.value, np.broadcast_to(np.asarray(scores.errors()), scores.value.shape)
    alive, doubtful = np.ones(score.shape, bool), np.zeros(score.shape, bool)
    if least is not None:
        limit, slack = float(least.value.reshape(())), error + np.max(least.errors())
        alive, doubtful = score + slack >= limit, np.abs(score - limit) <= slack
    for _ in range(min(most, score.size)):
        if not alive.any():
            return
        best = int(np.argmax(np.where(alive, score, -np.inf)))
        if not alive[best]:  # all that are left have a score of -inf
            best = int(np.argmax(alive))
        alive[best] = False
        rivals = alive & ((error > 0) | (error[best] > 0)) & (score + error >= score[best] - error[best])
        if doubtful[best] or rivals.any():
            raise UnsupportedOperatorError("NonMaxSuppression by scores that are equal within rounding")
        yield best
        certainly, possibly = boxes.overlapping(best, threshold)
        if np.any(alive & (certainly != possibly)):
            raise UnsupportedOperatorError(
                "NonMaxSuppression of an overlap that is the threshold within rounding"
            )
        alive &= ~certainly


OPERATORS: dict[str, Operator] = {"NonMaxSuppression": _non_max_suppression}
