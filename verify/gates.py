"""The gates: pure functions of a runtime's outputs and the oracle's.

*form*: names, shapes, dtypes, and the positions of NaN and the infinities, before any difference is taken. NaN on
both sides is a match only where the oracle has it. *proof*: |y - o| <= tau for every element; a violation is a
proven defect under the declared arithmetic (NUMERICS.md section 3).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnx_attest.errors import UsageError
from onnx_attest.verify.arithmetic import largest_of
from onnx_attest.verify.findings import Finding, finding
from onnx_attest.verify.oracle.blocks import over_blocks
from onnx_attest.verify.oracle.bounded import Bounded, Floats, is_floating


@dataclass(frozen=True)
class Worst:
    """The element with the largest error over its bound."""

    output: str = ""
    index: tuple[int, ...] = ()
    actual: float = float("nan")
    expected: float = float("nan")
    ratio: float = 0.0


@dataclass(frozen=True)
class Judgement:
    """What the gates say of one set of outputs.

    Attributes:
        unbounded: elements whose bound is infinite: whatever the runtime gives there proves nothing.
        max_err_over_tau: None where the form gate failed, since there is no difference to take.
        max_abs_err, max_rel_err: over all elements that are finite on both sides; reported, never judged by.
    """

    findings: tuple[Finding, ...]
    max_err_over_tau: float | None
    max_abs_err: float | None
    max_rel_err: float | None
    worst: Worst
    unbounded: int = 0

    @property
    def passed(self) -> bool:
        """Whether no gate found anything."""
        return not self.findings


Index = tuple[int, ...]
Place = Callable[[str, Index], Index]
"""Where an element of an output's part is in the whole."""


def _same(_name: str, index: Index) -> Index:
    return index


def judge(
    actual: Mapping[str, NDArray[Any]],
    expected: Mapping[str, Bounded],
    dtypes: Mapping[str, np.dtype[Any]],
    at: Place = _same,
) -> Judgement:
    """Return what the gates *form* and *proof* say.

    Args:
        actual: what the runtime gave, by output name.
        expected: what the oracle gave, with bounds.
        dtypes: what each output must be stored as.
        at: where elements are in the whole, if these are parts of outputs.
    """
    form = check_form(actual, expected, dtypes, at)
    if form:
        first = _first_misplaced(actual, expected)
        return Judgement(tuple(form), None, None, None, replace(first, index=at(first.output, first.index)))
    worst = max((_worst(name, actual[name], expected[name]) for name in expected), key=lambda w: w.ratio)
    worst = replace(worst, index=at(worst.output, worst.index))
    differences = [_differences(actual[name], expected[name]) for name in expected]
    found = [_violation(worst)] if worst.ratio > 1 else []
    return Judgement(
        tuple(found), worst.ratio, max(a for a, _ in differences), max(r for _, r in differences), worst,
        unbounded=sum(_unbounded(reference) for reference in expected.values()),
    )  # fmt: skip


def together(parts: Sequence[Judgement]) -> Judgement:
    """Return what the judgements of the parts of the same outputs come to: at least one."""
    ratios = [part.max_err_over_tau for part in parts]
    misplaced = next((part for part in parts if part.max_err_over_tau is None), None)
    worst = max((part.worst for part in parts), key=lambda one: one.ratio)
    found: dict[str, tuple[Finding, int]] = {}
    for part in parts:
        for item in part.findings:
            first, count = found.get(item.code, (item, 0))
            found[item.code] = first, count + 1
    if misplaced is None and worst.ratio > 1:
        found["OA301"] = _violation(worst), found["OA301"][1]
    return Judgement(
        tuple(_counted(item, count) for item, count in found.values()),
        None if misplaced is not None else max(ratio for ratio in ratios if ratio is not None),
        _largest([part.max_abs_err for part in parts]),
        _largest([part.max_rel_err for part in parts]),
        worst if misplaced is None else misplaced.worst,
        unbounded=sum(part.unbounded for part in parts),
    )


def _counted(item: Finding, count: int) -> Finding:
    return (
        item
        if count == 1
        else replace(item, message=f"{item.message} (and in {count - 1} more blocks of rows)")
    )


def _largest(numbers: Sequence[float | None]) -> float | None:
    """Return the largest number, None if one is not known."""
    known = [number for number in numbers if number is not None]
    return max(known) if len(known) == len(numbers) else None


def judge_value(
    name: str, actual: NDArray[Any], expected: Bounded
) -> tuple[float | None, tuple[Finding, ...], int]:
    """Return what the gates say of one value inside a graph, where speed counts: ratio, findings, unbounded elements.

    The ratio, of the largest error over its bound, is None where the form gate failed.
    """
    if (quick := _quick_ratio(actual, expected)) is not None:
        return quick, (), 0
    judged = judge({name: actual}, {name: expected}, {name: actual.dtype})
    return judged.max_err_over_tau, judged.findings, judged.unbounded


def _quick_ratio(actual: NDArray[Any], expected: Bounded) -> float | None:
    """Return the largest error over its bound where all is finite and within it, else None: then it is looked at."""
    if actual.shape != expected.value.shape or actual.size == 0:
        return None
    if expected.is_float != is_floating(actual.dtype):
        return None
    if expected.error is None:
        return 0.0 if all(over_blocks(_equal, (actual, expected.value))) else None
    if not expected.is_float:
        return None
    parts = over_blocks(_extremes, (actual, expected.value, expected.error))
    farthest, bound, size = (float(np.max(column)) for column in list(zip(*parts, strict=True))[:3])
    if not math.isfinite(farthest) or size + farthest > largest_of(
        actual.dtype
    ):  # NaN propagates through max
        return None
    ratio = float(np.fmax.reduce([part[3] for part in parts]))
    if math.isnan(ratio):
        return 0.0
    return ratio if ratio <= 1 and math.isfinite(bound) else None


def _equal(actual: NDArray[Any], value: Floats) -> bool:
    return bool((actual == value).all())


def _extremes(actual: NDArray[Any], value: Floats, error: Floats) -> tuple[float, float, float, float]:
    """Return the largest error, bound, number, and error over bound; 0/0 is NaN there: an exact element that is exact."""
    difference = np.asarray(np.subtract(actual, value, dtype=np.float64))
    np.abs(difference, out=difference)
    numbers = actual
    if math.isnan(difference.max()):  # infinities that are the same on both sides, or NaN
        same = actual == value
        difference[same] = 0.0
        numbers = np.where(same & np.isinf(actual), 0, actual)
    size = max(float(numbers.max()), -float(numbers.min()))
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = float(np.fmax.reduce(difference / error, axis=None))
    return float(difference.max()), float(np.max(error)), size, ratio


@dataclass(frozen=True)
class Tolerance:
    """A number that somebody must meet: |actual - expected| <= atol + rtol |expected|, as NumPy has it."""

    atol: float
    rtol: float

    def __post_init__(self) -> None:
        """Refuse what nothing, or everything, would be within.

        Raises:
            UsageError: a negative number, NaN or infinity.
        """
        if not all(math.isfinite(number) and number >= 0 for number in (self.atol, self.rtol)):
            raise UsageError(
                f"a tolerance is a finite number from 0 up, got atol {self.atol} and rtol {self.rtol}"
            )


def exceeds(
    actual: Mapping[str, NDArray[Any]],
    expected: Mapping[str, Bounded],
    tolerance: Tolerance,
    at: Place = _same,
) -> list[Finding]:
    """Return what lies outside a tolerance that was asked for, an extra gate beside the bound."""
    found = []
    for name, reference in expected.items():
        error = _error(actual[name], reference)
        allowed = tolerance.atol + tolerance.rtol * np.abs(reference.value)
        excess = np.where(np.isfinite(allowed), error - allowed, -np.inf)
        if excess.size and excess.max() > 0:
            index = tuple(int(i) for i in np.unravel_index(int(np.argmax(excess)), excess.shape))
            found.append(
                finding(
                    "OA306",
                    f"{name}{list(at(name, index))} is off by {error[index]:.3g}, {allowed[index]:.3g} is allowed",
                )
            )
    return found


def check_form(
    actual: Mapping[str, NDArray[Any]],
    expected: Mapping[str, Bounded],
    dtypes: Mapping[str, np.dtype[Any]],
    at: Place = _same,
) -> list[Finding]:
    """Return what the *form* gate finds: names first, then shapes and dtypes, then positions of NaN and inf."""
    if names := _other_names(actual, expected):
        return names
    found = []
    for name, reference in expected.items():
        shape = _other_shape(name, actual[name], reference.value.shape, dtypes[name])
        found += shape or _positions(name, actual[name], reference, at)
    return found


def check_shapes(
    actual: Mapping[str, NDArray[Any]],
    shapes: Mapping[str, tuple[int, ...]],
    dtypes: Mapping[str, np.dtype[Any]],
) -> list[Finding]:
    """Return what the *form* gate finds without looking at a number: names, shapes and dtypes."""
    return _other_names(actual, shapes) or [
        item
        for name, shape in shapes.items()
        for item in _other_shape(name, actual[name], shape, dtypes[name])
    ]


def _other_names(actual: Mapping[str, Any], expected: Mapping[str, Any]) -> list[Finding]:
    if set(actual) == set(expected):
        return []
    message = f"outputs are {', '.join(sorted(actual))}, they should be {', '.join(sorted(expected))}"
    return [finding("OA302", message)]


def _other_shape(
    name: str, actual: NDArray[Any], shape: tuple[int, ...], dtype: np.dtype[Any]
) -> list[Finding]:
    if actual.shape != shape:
        return [finding("OA302", f"{name}.shape is {actual.shape}, it should be {shape}")]
    if actual.dtype != dtype:
        return [finding("OA302", f"{name}.dtype is {actual.dtype}, it should be {dtype}")]
    return []


def _positions(name: str, actual: NDArray[Any], expected: Bounded, at: Place) -> list[Finding]:
    if not expected.is_float:
        return []
    found = []
    for label, wrong in _misplaced(actual, expected).items():
        if wrong.any():
            index = tuple(int(i) for i in np.argwhere(wrong)[0])
            there = "has" if _IS[label](actual[index]) else "lacks"
            found.append(
                finding("OA303", f"{name}{list(at(name, index))} {there} {label}, {int(wrong.sum())} such of {wrong.size}; "
                                 f"exact: {expected.value[index]:.6g}")
            )  # fmt: skip
    return found


_IS: dict[str, Callable[[Any], Any]] = {"NaN": np.isnan, "+inf": np.isposinf, "-inf": np.isneginf}


def _misplaced(actual: NDArray[Any], expected: Bounded) -> dict[str, NDArray[np.bool_]]:
    """Return where NaN and each infinity is on one side only.

    A float64 value beyond the dtype's largest number is an infinity there; one that is within its bound of the
    largest number may be that infinity or not. NaN is never a matter of rounding.
    """
    largest = largest_of(actual.dtype)
    value = expected.value
    with np.errstate(invalid="ignore"):
        stored = np.where(np.abs(value) > largest, np.copysign(np.inf, value), value)
        size, error = np.abs(value), expected.errors()
        either = np.isfinite(value) & (size + error > largest) & (size - error <= largest)
    excused = {"NaN": False, "+inf": either & (value > 0), "-inf": either & (value < 0)}
    return {label: (is_(actual) != is_(stored)) & ~np.asarray(excused[label]) for label, is_ in _IS.items()}


def _unbounded(expected: Bounded) -> int:
    """Return how many numbers have no bound, although they are numbers."""
    if not expected.is_float or expected.error is None:
        return 0
    return int((np.isfinite(expected.value) & ~np.isfinite(expected.error)).sum())


def _first_misplaced(actual: Mapping[str, NDArray[Any]], expected: Mapping[str, Bounded]) -> Worst:
    for name, reference in expected.items():
        array = actual.get(name)
        if array is None or array.shape != reference.value.shape or not reference.is_float:
            continue
        if not is_floating(array.dtype):
            continue
        for wrong in _misplaced(array, reference).values():
            if wrong.any():
                index = tuple(int(i) for i in np.argwhere(wrong)[0])
                return Worst(name, index, float(array[index]), float(reference.value[index]), float("inf"))
    return Worst()


def ratios(actual: NDArray[Any], expected: Bounded) -> Floats:
    """Return |actual - expected| over the bound for each element, 0 where both are the same NaN or infinity.

    Integers and booleans have no slack, infinite where they differ, unless they are codes with an error.
    """
    if not expected.is_float and expected.error is None:
        return np.where(actual != expected.value, np.inf, 0.0)
    difference = _error(actual, expected)
    bound = np.broadcast_to(expected.errors(), difference.shape)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = difference / bound
    # 0/0: an exact element that is exact. Elements without a bound are counted apart: they exceed nothing.
    return np.where((difference == 0) | ~np.isfinite(bound), 0.0, ratio)


def _error(actual: NDArray[Any], expected: Bounded) -> Floats:
    value = expected.value.astype(np.float64)
    both = np.isfinite(value) & np.isfinite(actual.astype(np.float64))
    with np.errstate(invalid="ignore", over="ignore"):
        return np.where(both, np.abs(actual.astype(np.float64) - value), 0.0)


def _worst(name: str, actual: NDArray[Any], expected: Bounded) -> Worst:
    ratio = ratios(actual, expected)
    if ratio.size == 0:
        return Worst(name)
    index = tuple(int(i) for i in np.unravel_index(int(np.argmax(ratio)), ratio.shape))
    return Worst(name, index, float(actual[index]), float(expected.value[index]), float(ratio[index]))


def _differences(actual: NDArray[Any], expected: Bounded) -> tuple[float, float]:
    difference = _error(actual, expected)
    size = np.abs(expected.value.astype(np.float64))
    relative = np.divide(difference, size, out=np.zeros_like(difference), where=(size > 0) & (difference > 0))
    return float(difference.max(initial=0.0)), float(relative.max(initial=0.0))


def _violation(worst: Worst) -> Finding:
    where = f"{worst.output}{list(worst.index)}"
    return finding(
        "OA301",
        f"{where} is {worst.actual:.9g}, exact {worst.expected:.9g}: {worst.ratio:.3g} times its bound",
    )
