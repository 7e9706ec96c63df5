"""Whether a relation holds between outputs: bit by bit, within what rounding may do, or not."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from onnx_attest.verify.metamorphic.relation import Between, Pair, Relation, Step
from onnx_attest.verify.oracle.bounded import Bounded, is_floating
from onnx_attest.verify.runtimes.base import Tensors

Holds = Literal["bitwise", "rounding", "no", "unknown"]
Outputs = Mapping[str, NDArray[Any]]
Slacks = Mapping[str, NDArray[Any]]
"""By output: how far each number of a correct runtime may be from the exact one; infinite where nothing is known."""


@dataclass(frozen=True)
class Evidence:
    """What comparing the outputs of a relation's runs came to.

    Attributes:
        holds: `unknown`: not bit by bit, and nothing says how much rounding is allowed.
        elements: compared.
        differing: how many are not the same bits.
        largest: largest absolute difference.
        over_bound: largest difference over the sum of the bounds; None where there is none.
        text: the first element that tells against it, or why nothing can be said.
    """

    holds: Holds
    elements: int
    differing: int
    largest: float
    over_bound: float | None
    text: str = ""


def inputs_of(step: Step, earlier: Sequence[Outputs]) -> Tensors:
    """Return the inputs of a run, with those that earlier runs gave."""
    carried = {name: one.take(earlier[one.step][one.output]) for name, one in step.carried.items()}
    return {**step.inputs, **carried}


def with_errors(step: Step, inputs: Tensors, earlier: Sequence[Slacks]) -> dict[str, Any]:
    """Return the inputs of a run as the oracle takes them, with the errors that they have already."""
    errors = dict(step.errors)
    for name, one in step.carried.items():
        errors[name] = one.take(earlier[one.step][one.output])
    held: dict[str, Any] = dict(inputs)
    for name, error in errors.items():
        held[name] = Bounded(inputs[name].astype(np.float64), error)
    return held


def examine(relation: Relation, outputs: Sequence[Outputs], slacks: Sequence[Slacks] | None) -> Evidence:
    """Return whether a relation holds.

    Args:
        relation: that was run.
        outputs: of each run.
        slacks: of each run; None where nothing is known.
    """
    parts = [_pair(pair, outputs, slacks) for pair in relation.pairs]
    parts += [_between(limit, outputs[0]) for limit in relation.limits]
    worst = min(parts, key=lambda part: _ORDER.index(part.holds))
    known = [part.over_bound for part in parts if part.over_bound is not None]
    return Evidence(
        worst.holds,
        sum(part.elements for part in parts),
        sum(part.differing for part in parts),
        max(part.largest for part in parts),
        max(known, default=None) if worst.holds != "unknown" else None,
        worst.text,
    )


_ORDER: tuple[Holds, ...] = ("no", "unknown", "rounding", "bitwise")


def _pair(pair: Pair, outputs: Sequence[Outputs], slacks: Sequence[Slacks] | None) -> Evidence:
    name = pair.output
    after, before = pair.after(outputs[pair.step][name]), pair.before(outputs[0][name])
    if after.shape != before.shape:
        text = f"{name} comes as {list(after.shape)} then, and as {list(before.shape)} before"
        return Evidence("no", after.size, after.size, np.inf, None, text)
    wanted = before if pair.factor == 1.0 else before * before.dtype.type(pair.factor)
    differs = np.asarray((after != wanted) & ~(_is_nan(after) & _is_nan(wanted)))
    count = int(differs.sum())
    if not count:
        return Evidence("bitwise", after.size, 0, 0.0, 0.0)
    if not is_floating(after.dtype):
        return Evidence("no", after.size, count, 1.0, None, _first(name, differs, after, wanted))
    with np.errstate(invalid="ignore", over="ignore"):
        exact = before.astype(np.float64) * pair.factor
        distance = np.where(differs, np.abs(after.astype(np.float64) - exact), 0.0)
    distance = np.where(np.isnan(distance), np.inf, distance)
    largest = float(distance.max())
    if not np.isfinite(distance).all():  # a number on one side only: no rounding does that
        text = _first(name, ~np.isfinite(distance), after, wanted)
        return Evidence("no", after.size, count, largest, None, text)
    if slacks is None:
        text = _first(name, differs, after, wanted)
        return Evidence("unknown", after.size, count, largest, None, text)
    allowed = pair.after(slacks[pair.step][name]) + abs(pair.factor) * pair.before(slacks[0][name])
    return _within(name, (after, wanted), distance, np.asarray(allowed), count)


def _within(
    name: str,
    both: tuple[NDArray[Any], NDArray[Any]],
    distance: NDArray[Any],
    allowed: NDArray[Any],
    count: int,
) -> Evidence:
    """Return what distances come to beside what is allowed; as large as the numbers themselves it allows anything."""
    after, wanted = both
    largest = float(distance.max())
    beyond = distance > allowed
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = float(np.nan_to_num(distance / allowed, nan=0.0, posinf=np.inf).max())
    if beyond.any():
        return Evidence("no", after.size, count, largest, ratio, _first(name, beyond, after, wanted))
    if _says_nothing(allowed, wanted):
        text = (
            f"the bounds of {name} are as large as its numbers; {_first(name, distance > 0, after, wanted)}"
        )
        return Evidence("unknown", after.size, count, largest, None, text)
    return Evidence("rounding", after.size, count, largest, ratio)


def _says_nothing(allowed: NDArray[Any], wanted: NDArray[Any]) -> bool:
    size = np.abs(wanted.astype(np.float64))
    size = size[np.isfinite(size)]
    return not np.isfinite(allowed).all() or float(np.median(allowed)) > float(np.median(size)) > 0


def _between(limit: Between, outputs: Outputs) -> Evidence:
    array = outputs[limit.output]
    value = array.astype(np.float64)
    distance = np.maximum(np.maximum(limit.low - value, value - limit.high), 0.0)
    distance = np.where(np.isnan(value), np.inf, distance)
    largest, count = float(distance.max(initial=0.0)), int((distance > 0).sum())
    if not count:
        return Evidence("bitwise", value.size, 0, 0.0, 0.0)
    nearest = np.clip(value, limit.low, limit.high)
    if largest > limit.slack:
        text = _first(limit.output, distance > limit.slack, array, nearest)
        return Evidence("no", value.size, count, largest, largest / limit.slack, text)
    return Evidence("rounding", value.size, count, largest, largest / limit.slack)


def _first(name: str, where: NDArray[Any], actual: NDArray[Any], wanted: NDArray[Any]) -> str:
    index = tuple(int(i) for i in np.argwhere(where)[0])
    there = ", ".join(map(str, index))
    return (
        f"element [{there}] of {name} is {_shown(actual[index])} then, it has to be {_shown(wanted[index])} "
        f"({int(where.sum())} such of {where.size})"
    )


def _shown(number: Any) -> str:
    return f"{float(number):.9g}"


def _is_nan(array: NDArray[Any]) -> NDArray[np.bool_]:
    return np.asarray(np.not_equal(array, array))


class Runner:
    """Runs the steps of relations, each step once for all relations that share it."""

    def __init__(
        self,
        run: Callable[[Tensors], Outputs],
        bound: Callable[[dict[str, Any]], Slacks] | None = None,
    ) -> None:
        """Take what runs a step, and what gives the bounds of its outputs; None without any."""
        self._run, self._bound = run, bound
        self._kept: dict[int, tuple[Step, Outputs, Slacks | None]] = {}

    def examine(self, relation: Relation) -> Evidence:
        """Run a relation and return whether it holds; whatever running raises goes through."""
        outputs: list[Outputs] = []
        for step in relation.steps:
            kept = self._kept.get(id(step))
            if kept is None or step.carried:
                kept = (step, self._run(inputs_of(step, outputs)), None)
                self._kept[id(step)] = kept
            outputs.append(kept[1])
        found = examine(relation, outputs, None)
        if self._bound is None or found.holds != "unknown":
            return found
        return examine(relation, outputs, self._slacks(relation, outputs))

    def _slacks(self, relation: Relation, outputs: Sequence[Outputs]) -> list[Slacks]:
        assert self._bound is not None
        slacks: list[Slacks] = []
        for step, given in zip(relation.steps, outputs, strict=True):
            kept = self._kept[id(step)]
            slack = kept[2]
            if slack is None:
                bounds = self._bound(with_errors(step, inputs_of(step, outputs), slacks))
                # One number stands for all where nothing is known.
                slack = {
                    name: np.broadcast_to(one, given[name].shape) if np.ndim(one) == 0 else one
                    for name, one in bounds.items()
                }
                self._kept[id(step)] = (*kept[:2], slack)
            slacks.append(slack)
        return slacks
