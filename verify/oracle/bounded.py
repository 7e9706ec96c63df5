"""Values in float64 with a bound on how far a correct runtime may be from them, and the arithmetic of such pairs.

Each function returns the exact result of its operation on the exact values, and a bound that holds for every
runtime which computes the operation in the given arithmetic on operands that are themselves within their bounds.
Sources: Higham, *Accuracy and Stability of Numerical Algorithms*, chapter 3; NUMERICS.md sections 1 and 4.

Where the arithmetic asks for deviations, a variance goes along: sharp, not a bound. Roundings are taken as independent,
each uniform within its half unit: KAPPA u^2 x^2, averaged over the mantissa (NUMERICS.md section 2). Where the
arithmetic has a kernel, the value itself is computed in it, rounded, and there is neither bound nor variance.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ParamSpec

import numpy as np
from numpy.typing import NDArray

from onnx_attest.verify.arithmetic import Arithmetic, gamma
from onnx_attest.verify.oracle import blocks
from onnx_attest.verify.oracle.blocks import Part, in_blocks, is_small

if TYPE_CHECKING:
    from onnx_attest.verify.oracle.attention import SoftmaxFacts

Array = NDArray[Any]
Floats = NDArray[np.float64]
P = ParamSpec("P")
KAPPA = 0.1804
"""Mean square of a rounding error relative to u x, for x with a log-uniform mantissa (NUMERICS.md section 2)."""
FUNCTION_VARIANCE = 0.18 * 4
"""Mean square error of an exponential, a tanh or their like, in units of u^2: 0.18 (2u)^2."""
HUGE, ABSORBED = 2.0**60, 2.0**-54
"""A number above the first leaves nothing of another one that is below the second times it: see `add`."""


@dataclass(frozen=True, slots=True, eq=False)
class Bounded:
    """An array and the absolute error that a correct runtime may have in it.

    Attributes:
        value: float64, or integers or booleans as they are.
        error: float64 of the same shape; None stands for exact. Of integers (codes of a quantised tensor): by how many
            a correct runtime may be off.
        variance: of the error of a correct runtime, float64 of the same shape; None where it is exact, or not asked for.
        magnitude: for a matrix product and what scales it, the product of absolute values |a||b|: it says how
            much cancellation there was.
        softmax: set where the values are attention weights, so that a product with them can use the centred bound.
        attended: set where the values are such a product: what is known of its weights.
        held: for a constant, which is multiplied again and again: its magnitudes, once they have been made.
    """

    value: Array
    error: Floats | None = None
    magnitude: Floats | None = None
    softmax: SoftmaxFacts | None = None
    attended: SoftmaxFacts | None = None
    variance: Floats | None = None
    held: dict[int, Magnitude] | None = None

    @property
    def is_float(self) -> bool:
        """Whether the values are real numbers, for which rounding matters."""
        return bool(self.value.dtype == np.float64)

    def errors(self) -> Floats | float:
        """Return the error, 0.0 where exact."""
        return 0.0 if self.error is None else self.error

    def variances(self) -> Floats | float:
        """Return the variance, 0.0 where there is none."""
        return 0.0 if self.variance is None else self.variance

    def moved(self, move: Callable[[Array], Array]) -> Bounded:
        """Return the same numbers in other places: value, error and variance go the same way."""
        shape = self.value.shape
        error, variance = (
            None if own is None else move(spread(own, shape)) for own in (self.error, self.variance)
        )
        return Bounded(move(self.value), error, variance=variance)


def spread(array: Any, shape: tuple[int, ...]) -> Floats:
    """Return an array in a shape that it broadcasts to: itself where it has that shape, as most do."""
    return array if getattr(array, "shape", None) == shape else np.broadcast_to(array, shape)


def exact(value: Any) -> Bounded:
    """Return a value without error; floats of any width become float64."""
    array = np.asarray(value)
    with np.errstate(
        invalid="ignore"
    ):  # a signalling NaN, in a damaged file for example, is a NaN like any other
        return Bounded(array.astype(np.float64) if is_floating(array.dtype) else array)


def concatenated(parts: Sequence[Bounded], axis: int) -> Bounded:
    """Return the parts one behind the other along an axis."""

    def joined(own: list[Floats | float]) -> Floats:
        sized = [spread(one, part.value.shape) for one, part in zip(own, parts, strict=True)]
        return np.concatenate(sized, axis)

    return Bounded(
        np.concatenate([part.value for part in parts], axis),
        None if all(part.error is None for part in parts) else joined([part.errors() for part in parts]),
        variance=None
        if all(part.variance is None for part in parts)
        else joined([part.variances() for part in parts]),
    )


def is_floating(dtype: Any) -> bool:
    """Whether a dtype is a floating one; ml_dtypes' bfloat16 does not say so itself."""
    return bool(np.issubdtype(dtype, np.floating)) or np.dtype(dtype).name in ("bfloat16", "float16")


_PARTS = 4  # of a `Bounded`, as far as single elements have them


def blockwise(function: Callable[P, Bounded]) -> Callable[P, Bounded]:
    """Return a function of operands, and what else it takes, that handles large operands block by block.

    What it gives for an element must depend on the operands at that element alone.
    """

    @functools.wraps(function)
    def of(*given: P.args, **others: P.kwargs) -> Bounded:
        operands = [one for one in given if isinstance(one, Bounded)]
        # What is known of a softmax is of whole rows.
        if any(one.softmax is not None or one.attended is not None for one in operands):
            return function(*given, **others)
        if is_small(*(one.value for one in operands)):
            return function(*given, **others)
        rest = given[len(operands) :]

        def parts(*flat: Any) -> tuple[Part, ...]:
            grouped = (flat[index : index + _PARTS] for index in range(0, len(flat), _PARTS))
            one = function(*(Bounded(v, e, m, variance=d) for v, e, m, d in grouped), *rest, **others)  # type: ignore[arg-type]
            return one.value, one.error, one.magnitude, one.variance

        flat = [part for one in operands for part in (one.value, one.error, one.magnitude, one.variance)]
        value, error, magnitude, variance = in_blocks(parts, flat)
        return Bounded(value, error, magnitude, variance=variance)

    return of


def rounded(
    value: Floats,
    inherited: Floats | float,
    arithmetic: Arithmetic,
    roundings: float = 1.0,
    *,
    variance: Floats | float = 0.0,
) -> Bounded:
    """Return a value whose last operation was rounded, with the errors and the variance inherited from its operands."""
    if arithmetic.kernel is not None:
        return Bounded(arithmetic.kernel.stored(value))
    u = max(arithmetic.u, arithmetic.u_s)
    with np.errstate(invalid="ignore", over="ignore"):
        # Not |value| + inherited first: beside the lowest number of float64, which hides keys, that overflows.
        error = inherited * (1 + roundings * u) + roundings * u * np.abs(value) + arithmetic.omega
    own = _own_variance(value, arithmetic)
    return Bounded(value, _settled(value, error), variance=_together(value, arithmetic, own, variance))


def _own_variance(value: Floats, arithmetic: Arithmetic) -> Floats | float:
    """Return the variance of rounding a value once to the format of elementwise operations, and of storing it."""
    if not arithmetic.deviations:
        return 0.0
    with np.errstate(over="ignore"):
        return np.asarray(KAPPA * (arithmetic.u**2 + arithmetic.u_s**2) * value**2)


def _together(value: Floats, arithmetic: Arithmetic, *parts: Floats | float) -> Floats | None:
    """Return the sum of variances in the value's shape, 0 where the value is no number; None if none is asked for."""
    if not arithmetic.deviations:
        return None
    with np.errstate(invalid="ignore", over="ignore"):
        whole = spread(np.asarray(sum(parts)), value.shape)
    if _all_finite(whole) and np.isfinite(value).all():
        return whole
    return np.where(np.isfinite(value) & np.isfinite(whole), whole, 0.0)


def _settled(value: Floats, error: Floats) -> Floats:
    """Return a bound of the value's shape: 0 on an infinity, which is what it is; infinite where nothing is known."""
    if _all_finite(error) and np.isfinite(value).all():
        return spread(error, value.shape)
    known = np.where(np.isnan(error), np.inf, error)
    return spread(np.where(np.isfinite(value), known, 0.0), value.shape)


def _all_finite(magnitudes: Floats) -> bool:
    """Whether none of these numbers, of which none is negative, is infinite or NaN; NaN propagates through max."""
    return math.isfinite(float(np.max(magnitudes, initial=0.0)))


def _product(a: Floats, b: Floats | float) -> Floats:
    """Return a * b with 0 * inf = 0: no error on a number, or a number that is zero, has no share."""
    with np.errstate(invalid="ignore"):
        product = np.asarray(a * b)
    if _all_finite(product):
        return product
    return np.where((a == 0) | (np.asarray(b) == 0), 0.0, product)


@blockwise
def add(a: Bounded, b: Bounded, arithmetic: Arithmetic) -> Bounded:
    """Return a + b."""
    variance = a.variances() + b.variances()
    result = rounded(a.value + b.value, a.errors() + b.errors(), arithmetic, variance=variance)
    if arithmetic.kernel is not None:
        return result
    result = _exact_where(_cancels(result, a, b), result)
    for huge, other in ((a, b), (b, a)):
        result = _absorbing(result, huge, other)
    return _keeping_magnitude(result, a, b)


def _absorbing(result: Bounded, huge: Bounded, other: Bounded) -> Bounded:
    """Return the sum without error where it is the exact huge number whatever the other one is, within its error.

    A mask of the lowest number plus a score is the lowest number in every format up to float64: a row masked like
    that has equal logits, which no bound on a rounding would tell.
    """
    if huge.value.max(initial=0.0) <= HUGE and huge.value.min(initial=0.0) >= -HUGE:
        return result
    size = np.abs(huge.value)
    if not np.any((size > HUGE) & np.isfinite(size)):
        return result
    absorbs = np.isfinite(size) & (np.abs(other.value) + other.errors() < ABSORBED * size)
    absorbs = absorbs & (np.asarray(huge.errors()) == 0)
    variance = None if result.variance is None else np.where(absorbs, 0.0, result.variance)
    return Bounded(result.value, np.where(absorbs, 0.0, result.errors()), variance=variance)


@blockwise
def subtract(a: Bounded, b: Bounded, arithmetic: Arithmetic) -> Bounded:
    """Return a - b."""
    variance = a.variances() + b.variances()
    result = rounded(a.value - b.value, a.errors() + b.errors(), arithmetic, variance=variance)
    return _exact_where(_cancels(result, a, b), result)


def _cancels(result: Bounded, a: Bounded, b: Bounded) -> NDArray[np.bool_]:
    """Return where a sum of two exact numbers is 0: it is so in every format, and nothing is left to underflow.

    What hides no key is such a 0, 1 - 1, and is multiplied with the lowest number there is.
    """
    exactly = (np.asarray(a.errors()) == 0) & (np.asarray(b.errors()) == 0)
    return np.asarray((result.value == 0) & exactly)


@blockwise
def multiply(a: Bounded, b: Bounded, arithmetic: Arithmetic) -> Bounded:
    """Return a * b.

    A factor that is a single number gets c_s roundings: runtimes fold scales into each other and into a product's
    alpha, each time rounding the constant anew.
    """
    if arithmetic.kernel is not None:
        return Bounded(arithmetic.kernel.stored(a.value * b.value))
    ea, eb = np.asarray(a.errors()), np.asarray(b.errors())
    inherited = _product(np.abs(a.value), eb) + _product(np.abs(b.value), ea) + _product(ea, eb)
    variance = _product(a.value**2, b.variances()) + _product(b.value**2, a.variances())
    result = rounded(
        a.value * b.value, inherited, arithmetic, _scalar_roundings(a, b, arithmetic), variance=variance
    )
    if np.count_nonzero(result.value) == result.value.size:
        return _scaled_magnitude(result, a, b)
    nothing = ((a.value == 0) & (ea == 0) & np.isfinite(b.value)) | (
        (b.value == 0) & (eb == 0) & np.isfinite(a.value)
    )
    return _scaled_magnitude(_exact_where(nothing, result), a, b)


def _exact_where(nothing: NDArray[np.bool_], result: Bounded) -> Bounded:
    """Return a result without error where it is 0 because an operand surely is: nothing can underflow there."""
    if result.error is None or not nothing.any():
        return result
    return replace(result, error=np.where(nothing, 0.0, result.error))


@blockwise
def divide(a: Bounded, b: Bounded, arithmetic: Arithmetic) -> Bounded:
    """Return a / b.

    Raises:
        ArithmeticError: b is zero within its error, so that the sign of the result is a matter of rounding.
    """
    if arithmetic.kernel is not None:
        with np.errstate(divide="ignore", invalid="ignore"):
            return Bounded(arithmetic.kernel.stored(a.value / b.value))
    ea, eb = np.asarray(a.errors()), np.asarray(b.errors())
    magnitude = np.abs(b.value)
    if np.any((eb > 0) & (magnitude <= eb)):
        raise ArithmeticError("divides by a number that is zero within its rounding error")
    with np.errstate(divide="ignore", invalid="ignore"):
        quotient = a.value / b.value
        inherited = (ea + _product(np.abs(quotient), eb)) / (magnitude - eb)
        variance = (a.variances() + _product(quotient**2, b.variances())) / b.value**2
    result = rounded(quotient, inherited, arithmetic, _scalar_roundings(a, b, arithmetic), variance=variance)
    if np.count_nonzero(a.value) < a.value.size:
        result = _exact_where((a.value == 0) & (ea == 0) & np.isfinite(b.value) & (b.value != 0), result)
    if b.value.size != 1 or a.magnitude is None:
        return result
    return replace(result, magnitude=a.magnitude / np.abs(b.value))


def _scalar_roundings(a: Bounded, b: Bounded, arithmetic: Arithmetic) -> float:
    return arithmetic.c_s if 1 in (a.value.size, b.value.size) else 1.0


def _scaled_magnitude(result: Bounded, a: Bounded, b: Bounded) -> Bounded:
    product, factor = (a, b) if b.value.size == 1 else (b, a)
    if product.magnitude is None or factor.value.size != 1:
        return result
    return replace(result, magnitude=product.magnitude * np.abs(factor.value))


def _keeping_magnitude(result: Bounded, a: Bounded, b: Bounded) -> Bounded:
    magnitude = a.magnitude if a.magnitude is not None else b.magnitude
    if magnitude is None:
        return result
    return replace(result, magnitude=spread(magnitude, result.value.shape))


@blockwise
def exponential(a: Bounded, arithmetic: Arithmetic) -> Bounded:
    """Return e^a: e^(x + E) - e^x, and c_exp u."""
    with np.errstate(over="ignore", invalid="ignore"):
        value = np.exp(a.value)
        inherited = np.exp(a.value + a.errors()) - value  # not e^x (e^E - 1): that is 0 * inf for a masked x
        own = FUNCTION_VARIANCE * arithmetic.u**2 * value**2
        variance = _product(value**2, a.variances()) + own
    result = rounded(value, inherited, arithmetic, arithmetic.c_exp, variance=variance)
    if result.error is None:
        return result
    return replace(result, error=np.where(np.isneginf(a.value), 0.0, result.error))  # exp(-inf) is 0, exactly


@blockwise
def root(a: Bounded, arithmetic: Arithmetic) -> Bounded:
    """Return the square root: E / (sqrt(x) + sqrt(x - E)) below, and less above.

    Raises:
        ArithmeticError: x has one sign, and the other within its error: NaN is a matter of rounding.
    """
    error = spread(a.errors(), a.value.shape)
    if np.any((error > 0) & (a.value < error) & (a.value >= -error)):
        raise ArithmeticError("takes the square root of a number that is negative within its rounding error")
    with np.errstate(invalid="ignore"):
        value = np.sqrt(a.value)
        sides = value + np.sqrt(a.value - error)
    inherited = np.divide(error, sides, out=np.zeros_like(value), where=sides > 0)
    given = spread(a.variances(), value.shape)
    variance = np.divide(given, 4 * a.value, out=np.zeros_like(value), where=a.value > 0)
    return rounded(value, inherited, arithmetic, variance=variance)


def total(a: Bounded, axes: tuple[int, ...], *, keepdims: bool, arithmetic: Arithmetic) -> Bounded:
    """Return the sum over axes, in whatever order it is taken: sum E + gamma_n sum (|x| + E)."""
    _refuse_rounded_integers(a)
    value = a.value.sum(axes, keepdims=keepdims)
    if not a.is_float:
        return Bounded(value)
    if arithmetic.kernel is not None:
        return Bounded(arithmetic.kernel.total(a.value, axes, keepdims=keepdims))
    terms = a.value.size // max(value.size, 1)
    error = spread(a.errors(), a.value.shape).sum(axes, keepdims=keepdims)
    size = np.abs(a.value).sum(axes, keepdims=keepdims) + error
    rounding = gamma(terms, arithmetic.u_acc) * size + arithmetic.u_s * size
    rounding = rounding + np.where(size > 0, terms * arithmetic.omega, 0.0)  # a sum of zeros is zero
    variance = None
    if arithmetic.deviations:
        given = spread(a.variances(), a.value.shape).sum(axes, keepdims=keepdims)
        squares = (a.value**2).sum(axes, keepdims=keepdims)
        own = sum_variance(value, squares, terms, arithmetic)
        variance = _together(value, arithmetic, given, own, KAPPA * arithmetic.u_s**2 * value**2)
    bound = _beyond_range(np.asarray(size), _settled(np.asarray(value), error + rounding), arithmetic)
    return Bounded(value, bound, variance=variance)


def _refuse_rounded_integers(*operands: Bounded) -> None:
    """Refuse codes that may be off by one: what is made of them is for the operators of quantised tensors.

    Raises:
        ArithmeticError: there are such.
    """
    if any(not one.is_float and one.error is not None and np.any(one.error > 0) for one in operands):
        raise ArithmeticError("computes with integers that rounding decides")


def sum_variance(value: Floats, squares: Floats, terms: Any, arithmetic: Arithmetic) -> Floats:
    """Return the variance of summing terms one after another: kappa u_acc^2 (n + 1) (s^2 / 3 + sum x^2 / 6).

    The partial sums of a sum are on average a third of its square, and a sixth of the sum of squares, in size
    (NUMERICS.md section 2).
    """
    return np.asarray(KAPPA * arithmetic.u_acc**2 * (terms + 1) * (value**2 / 3 + squares / 6))


def largest(a: Bounded, axes: tuple[int, ...], *, keepdims: bool) -> Bounded:
    """Return the maximum over axes: it is off by no more than the worst element that may be the largest."""
    value = a.value.max(axes, keepdims=keepdims, initial=_lowest(a.value.dtype))
    if a.error is None:
        return Bounded(value)
    # A masked number with an enormous error is not among them.
    surely = (a.value - a.error).max(axes, keepdims=True, initial=-np.inf)
    candidates = a.value + a.error >= surely
    error, variance = (
        None if own is None else np.where(candidates, own, 0.0).max(axes, keepdims=keepdims, initial=0.0)
        for own in (a.error, a.variance)
    )
    return Bounded(value, error, variance=variance)


def _lowest(dtype: np.dtype[Any]) -> Any:
    if np.issubdtype(dtype, np.floating):
        return -np.inf
    return False if dtype == np.bool_ else np.iinfo(dtype).min


def matmul(a: Bounded, b: Bounded, arithmetic: Arithmetic) -> Bounded:
    """Return a @ b, summed in any order: |A| E_B + E_A |B| + E_A E_B + gamma_k (|A| + E_A)(|B| + E_B).

    Casting the operands to a shorter format (TF32) adds 2 u_in (1 + u_in) |A||B|.
    """
    if arithmetic.kernel is not None and a.is_float:
        return Bounded(arithmetic.kernel.matmul(a.value, b.value))
    _refuse_rounded_integers(a, b)
    value = blocks.matmul(a.value, b.value) if a.is_float else np.matmul(a.value, b.value)
    if not a.is_float:
        return Bounded(value)
    size = product_of_magnitudes(_power(a, 1), _power(b, 1))
    inherited = _inherited_by_product(a, b)
    terms = a.value.shape[-1] + 1  # one more, for a bias that the runtime folds into the same sum
    relative = gamma(terms, arithmetic.u_acc) + 2 * arithmetic.u_in * (1 + arithmetic.u_in)
    underflow = terms * arithmetic.omega  # each product may be flushed

    def of(value: Floats, size: Floats, inherited: Floats | float) -> tuple[Floats]:
        with np.errstate(invalid="ignore"):
            error = inherited + relative * (size + inherited) + arithmetic.u_s * (np.abs(value) + inherited)
        return (_beyond_range(size, _settled(value, error + underflow), arithmetic),)

    (error,) = in_blocks(of, (value, size, inherited))
    return Bounded(value, error, size, variance=_product_variance(a, b, value, arithmetic))


def _beyond_range(size: Floats, error: Floats, arithmetic: Arithmetic) -> Floats:
    """Return a sum's bound, infinite where partial sums, |a||b| in all, may overflow in one order and not in another."""
    if np.max(size, initial=0.0) <= arithmetic.largest_sum:
        return error
    with np.errstate(invalid="ignore"):
        return np.where((size > arithmetic.largest_sum) & np.isfinite(size) & (error > 0), np.inf, error)


def _product_variance(a: Bounded, b: Bounded, value: Floats, arithmetic: Arithmetic) -> Floats | None:
    if not arithmetic.deviations:
        return None
    a2, b2 = _power(a, 2), _power(b, 2)
    with np.errstate(invalid="ignore", over="ignore"):
        squares = product_of_magnitudes(a2, b2)
        inherited: Floats | float = 0.0
        if b.variance is not None:
            inherited = inherited + product_of_magnitudes(a2, Magnitude(spread(b.variance, b.value.shape)))
        if a.variance is not None:
            inherited = inherited + product_of_magnitudes(Magnitude(spread(a.variance, a.value.shape)), b2)
    terms = a.value.shape[-1]

    def of(value: Floats, squares: Floats, inherited: Floats | float) -> tuple[Floats | None]:
        own = sum_variance(value, squares, terms, arithmetic)
        cast = 2 * KAPPA * arithmetic.u_in**2 * squares + KAPPA * arithmetic.u_s**2 * value**2
        return (_together(value, arithmetic, own, cast, inherited),)

    variance: Floats | None
    (variance,) = in_blocks(of, (value, squares, inherited))
    return variance


def _inherited_by_product(a: Bounded, b: Bounded) -> Floats | float:
    inherited: Floats | float = 0.0
    if b.error is not None:
        inherited = inherited + product_of_magnitudes(_power(a, 1), Magnitude(b.error))
    if a.error is not None:
        reached = _power(b, 1) if b.error is None else Magnitude(_power(b, 1).full + b.error)
        inherited = inherited + product_of_magnitudes(Magnitude(a.error), reached)
    return inherited


_LEAST_IN_SINGLE = 2.0**-60
"""The product of two numbers from here to 1 does not underflow in float32."""
_ROUNDINGS = 8.0  # casts of both operands, scaling, and the cast back
_WORTHWHILE = 2**18  # products; below, the casts take longer than is won
_LONGEST_SUM = 2**12  # above, what float32 may lose is no longer small beside a bound


class Magnitude:
    """Numbers none of which is negative, and the same in float32 as a product wants them."""

    __slots__ = ("_single", "full")

    def __init__(self, full: Floats) -> None:
        """Keep the numbers, float64."""
        self.full = full
        self._single: tuple[NDArray[np.float32], float] | bool | None = False

    @property
    def single(self) -> tuple[NDArray[np.float32], float] | None:
        """The numbers scaled by a power of two to 1 at most, and the scale; None if float32 cannot hold them."""
        if isinstance(self._single, bool):
            self._single = _in_single(self.full)
        return self._single


def _in_single(full: Floats) -> tuple[NDArray[np.float32], float] | None:
    largest = float(full.max(initial=0.0))
    if not 0 < largest < np.inf:
        return None
    scale = float(2.0 ** -np.frexp(largest)[1])
    short = np.multiply(full, scale, dtype=np.float64).astype(np.float32)
    # Bits of floats that are not negative are in their order; a zero, less one, is the largest.
    smallest = (short.view(np.uint32) - np.uint32(1)).min().astype(np.uint32) + np.uint32(1)
    return None if np.asarray(smallest).view(np.float32) < _LEAST_IN_SINGLE else (short, scale)


def _power(a: Bounded, power: int) -> Magnitude:
    """Return |a| or a^2 as a factor of products."""
    if a.held is None:
        return Magnitude(np.abs(a.value) if power == 1 else a.value**2)
    if power not in a.held:
        a.held[power] = Magnitude(np.abs(a.value) if power == 1 else a.value**2)
    return a.held[power]


def positive_product(a: Floats, b: Floats) -> Floats:
    """Return a @ b of numbers none of which is negative, see `product_of_magnitudes`."""
    return product_of_magnitudes(Magnitude(a), Magnitude(b))


def product_of_magnitudes(a: Magnitude, b: Magnitude) -> Floats:
    """Return a @ b: at least as large as it is, and larger by 1e-3 of it at most.

    In float32, twice as fast, where their range allows: a magnitude only enters a bound or a deviation. What float32
    may have lost of a sum of positive terms is added.
    """
    terms = a.full.shape[-1]
    if a.full.size * b.full.shape[-1] >= _WORTHWHILE and terms <= _LONGEST_SUM and a.single and b.single:
        (left, left_scale), (right, right_scale) = a.single, b.single
        product = blocks.matmul(left, right).astype(np.float64)
        product *= (1 + 2 * gamma(terms + _ROUNDINGS, 2.0**-24)) / (left_scale * right_scale)
        return np.asarray(product)
    return blocks.matmul(a.full, b.full)


@blockwise
def where(condition: Bounded, a: Bounded, b: Bounded) -> Bounded:
    """Return a where the condition holds, else b; both keep their errors."""
    value = np.where(condition.value, a.value, b.value)
    error, variance = None, None
    if a.error is not None or b.error is not None:
        error = spread(np.where(condition.value, a.errors(), b.errors()), value.shape)
    if a.variance is not None or b.variance is not None:
        variance = spread(np.where(condition.value, a.variances(), b.variances()), value.shape)
    kept = _keeping_magnitude(Bounded(value, error, variance=variance), a, b)
    return replace(kept, softmax=_guarded(condition, a, b))


def _guarded(condition: Bounded, a: Bounded, b: Bounded) -> SoftmaxFacts | None:
    """Return the softmax facts of Where(IsNaN(p), 0, p): the same weights, without NaN."""
    shape = np.broadcast_shapes(condition.value.shape, a.value.shape, b.value.shape)
    if b.softmax is None or np.any(a.value) or shape != b.value.shape:
        return None
    same = bool(np.array_equal(spread(condition.value, shape), np.isnan(b.value)))
    return b.softmax.without_nan() if same else None
