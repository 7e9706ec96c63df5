"""The gate *exact*: relations that hold bit by bit on every correct runtime, barring over- and underflow.

Multiplying by a power of two, or by -1, changes no rounding; and what an output does not depend on may be anything. No
bound is needed, and no exact value: a runtime is held against itself (NUMERICS.md sections 3 and 6). Which relations a
graph has is not assumed: the oracle evaluates it with the changed inputs, and only what holds in float64 is asked of a
runtime.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnx_attest.models.contract import Contract
from onnx_attest.verify.findings import Finding, finding
from onnx_attest.verify.oracle.bounded import Bounded, is_floating
from onnx_attest.verify.runtimes.base import ProcessDiedError, Session, Tensors

Arrays = Mapping[str, NDArray[Any]]
_FACTORS = (1.0, -1.0, 2.0, 0.5)


@dataclass(frozen=True, eq=False)
class Relation:
    """Changed inputs, and what the outputs have to be then.

    Attributes:
        factors: by output, what each number is multiplied by, for outputs that change as a whole.
        untouched: by output, the elements that do not depend on what was changed, for the others.
    """

    name: str
    inputs: Tensors
    factors: Mapping[str, float]
    untouched: Mapping[str, NDArray[np.bool_]]

    def is_kept(self, before: Arrays, after: Arrays) -> str:
        """Return "" if the outputs are as they have to be, else the first element that is not."""
        for name, factor in self.factors.items():
            wanted = before[name] * before[name].dtype.type(factor)
            if text := _first_difference(name, after[name], wanted, np.ones(wanted.shape, bool)):
                return text
        for name, untouched in self.untouched.items():
            if text := _first_difference(name, after[name], before[name], untouched):
                return text
        return ""


class Relations:
    """The relations that a graph has on the inputs of one case; runtimes share them."""

    def __init__(
        self, contract: Contract, inputs: Tensors, evaluate: Callable[[Tensors], Mapping[str, Bounded]]
    ) -> None:
        """Find them.

        Args:
            contract: says what the inputs are.
            inputs: of the case.
            evaluate: the oracle's outputs for inputs.

        Raises:
            UnsupportedOperatorError: as `evaluate` does.
        """
        exact = evaluate(inputs)
        self._relations = [Relation("run twice", dict(inputs), dict.fromkeys(exact, 1.0), {})]
        for name, changed in _scalings(contract, inputs):
            self._add(_relation(name, changed, exact, evaluate(changed)))
        # What depends on what is a matter of the graph and its masks, not of numbers that happen to be alike: those of
        # the case alike at every key, or generic ones below zero that a ReLU makes one. So it has to hold for both.
        generic = _generic(contract, inputs)
        before = evaluate(generic)
        replaced = zip(_replaced(contract, inputs), _replaced(contract, generic), strict=True)
        for (name, changed), (_, other) in replaced:
            if (relation := _relation(name, changed, before, evaluate(other))) is not None:
                self._add(_of_both(relation, _relation(name, changed, exact, evaluate(changed))))

    def _add(self, relation: Relation | None) -> None:
        if relation is not None:
            self._relations.append(relation)

    def __len__(self) -> int:
        """How many there are."""
        return len(self._relations)

    def __iter__(self) -> Iterator[Relation]:
        """Yield them."""
        return iter(self._relations)

    def check(self, session: Session, outputs: Arrays) -> list[Finding]:
        """Return what a runtime breaks; `outputs` is what it gave for the case.

        Raises:
            ProcessDiedError: it took its process along.
        """
        found = []
        for relation in self._relations:
            try:
                after = session.run(relation.inputs)
            except ProcessDiedError:
                raise
            except Exception as error:  # noqa: BLE001 - it ran a moment ago, at the same sizes
                found.append(finding("OA501", f"{relation.name}: raised {type(error).__name__}: {error}"))
                continue
            if text := relation.is_kept(outputs, after):
                found.append(finding("OA501", f"{relation.name}: {text}"))
        return found


def _scalings(contract: Contract, inputs: Tensors) -> Iterator[tuple[str, Tensors]]:
    """Yield queries, keys and values times powers of two and -1."""
    by_role: dict[str, list[str]] = {}
    for spec in contract.inputs:
        if is_floating(inputs[spec.name].dtype):
            by_role.setdefault(spec.role, []).append(spec.name)
    q, k, v = (by_role.get(role, []) for role in ("query", "key", "value"))
    # float16 is short of exponents: what underflows there is rounded, and doubling it is not the same.
    doubles = not any(array.dtype == np.float16 for array in inputs.values())
    if v:
        yield "V times -1", _scaled(inputs, dict.fromkeys(v, -1.0))
    if v and doubles:
        yield "V times 2", _scaled(inputs, dict.fromkeys(v, 2.0))
    if q and k:
        yield "Q and K times -1", _scaled(inputs, dict.fromkeys([*q, *k], -1.0))
    if q and k and doubles:
        halves = _scaled(inputs, {**dict.fromkeys(q, 2.0), **dict.fromkeys(k, 0.5)})
        # Numbers that are too small to be halved exactly would be rounded before the runtime sees them.
        if all(np.array_equal(halves[name] * 2, inputs[name]) for name in k):
            yield "Q times 2 and K over 2", halves


_MOVING = ("query", "key", "value", "tokens", "data")


def _generic(contract: Contract, inputs: Tensors) -> Tensors:
    """Return gaussian numbers in place of all floats but masks; in float64, since bfloat16 has few numbers to differ by."""
    rng = np.random.default_rng(0)
    moving = [spec.name for spec in contract.inputs if spec.role in _MOVING]
    return {
        name: rng.standard_normal(array.shape) if name in moving and is_floating(array.dtype) else array
        for name, array in inputs.items()
    }


def _scaled(inputs: Tensors, factors: Mapping[str, float]) -> Tensors:
    scaled = {name: inputs[name] * inputs[name].dtype.type(factor) for name, factor in factors.items()}
    return {**inputs, **scaled}


def _replaced(contract: Contract, inputs: Tensors) -> Iterator[tuple[str, Tensors]]:
    """Yield the last entry of each dynamic axis replaced: what lies before it may not notice, if the graph says so."""
    for axis in contract.symbolic_axes():
        places = [
            (spec.name, spec.axes.index(axis))
            for spec in contract.inputs
            if axis in spec.axes and spec.role in _MOVING
        ]
        places = [(name, at) for name, at in places if is_floating(inputs[name].dtype)]
        if not places or any(inputs[name].shape[at] < 2 for name, at in places):
            continue
        changed = dict(inputs)
        for name, at in places:
            array = inputs[name].copy()
            last = (slice(None),) * at + (-1,)
            # Other numbers of about the same size: the entry before it, the other way round.
            with np.errstate(over="ignore"):
                array[last] = -np.take(array, -2, axis=at) * array.dtype.type(3)
            changed[name] = array
        yield f"the last entry of {axis} replaced", changed


def _relation(
    name: str, changed: Tensors, before: Mapping[str, Bounded], after: Mapping[str, Bounded]
) -> Relation | None:
    """Return what holds in float64, None if that is nothing."""
    factors, untouched = {}, {}
    for output, one in before.items():
        other = after[output]
        if one.value.shape != other.value.shape or not one.value.size:
            continue
        factor = _factor(one, other) if one.is_float else None
        if factor is not None:
            factors[output] = factor
            continue
        same = (one.value == other.value) | (_is_nan(one.value) & _is_nan(other.value))
        if same.any():
            untouched[output] = same
    return Relation(name, changed, factors, untouched) if factors or untouched else None


def _of_both(a: Relation, b: Relation | None) -> Relation | None:
    """Return what two relations about the same inputs have in common, None if that is nothing."""
    if b is None:
        return None
    factors = {name: factor for name, factor in a.factors.items() if b.factors.get(name) == factor}
    names = [name for name in _unchanged(a) if name in _unchanged(b) and name not in factors]
    common = {name: np.logical_and(_unchanged(a)[name], _unchanged(b)[name]) for name in names}
    untouched = {name: where for name, where in common.items() if where.any()}
    return replace(a, factors=factors, untouched=untouched) if factors or untouched else None


def _unchanged(relation: Relation) -> dict[str, NDArray[np.bool_]]:
    """Return the elements that stay as they are: all of an output whose factor is 1."""
    whole = {name: np.ones((), bool) for name, factor in relation.factors.items() if factor == 1.0}
    return {**whole, **relation.untouched}


def _factor(one: Bounded, other: Bounded) -> float | None:
    # Bit by bit in float64 too: there, signs and powers of two change no rounding either.
    equal = (factor for factor in _FACTORS if np.array_equal(other.value, factor * one.value, equal_nan=True))
    return next(equal, None)


def _first_difference(name: str, actual: NDArray[Any], wanted: NDArray[Any], where: NDArray[np.bool_]) -> str:
    if actual.shape != wanted.shape or actual.dtype != wanted.dtype:
        return (
            f"{name} comes as {actual.dtype} {actual.shape} then, and as {wanted.dtype} {wanted.shape} before"
        )
    both_nan = _is_nan(actual) & _is_nan(wanted)
    wrong = where & (actual != wanted) & ~both_nan
    if not wrong.any():
        return ""
    index = tuple(int(i) for i in np.argwhere(wrong)[0])
    return f"{name}{list(index)} is {actual[index]:.9g}, it has to be {wanted[index]:.9g} ({int(wrong.sum())} such of {wrong.size})"


def _is_nan(array: NDArray[Any]) -> NDArray[np.bool_]:
    """Return where there is NaN, in integers and in ml_dtypes' floats as well."""
    return np.asarray(np.not_equal(array, array))
