"""Activation functions that a recurrent or a fused operator names, with their alpha and beta."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from onnx_attest.verify.arithmetic import Arithmetic
from onnx_attest.verify.oracle.bounded import FUNCTION_VARIANCE, Bounded, Floats, rounded
from onnx_attest.verify.oracle.ops.operator import UnsupportedOperatorError
from onnx_attest.verify.oracle.ops.pointwise.curves import FUNCTION_ROUNDINGS

Function = Callable[[Floats, float, float], Floats]


@dataclass(frozen=True)
class Kind:
    """A function of one number.

    Attributes:
        function: of x, alpha and beta.
        slope: |f'|, at 0 the larger of both sides. It falls from 0 on, or is constant, on either side.
        arguments: how many of alpha and beta it takes.
        defaults: of alpha and beta; None where no operator of ONNX has one.
        exponential: whether its value comes from an exponential, a logarithm or their like.
        size: what its value is multiplied by: the absolute error is in units of that.
        reach: the least and the largest value there is, if any: what is put in cannot move the result beyond.
    """

    function: Function
    slope: Function
    arguments: int = 0
    defaults: tuple[float | None, float | None] = (None, None)
    exponential: bool = False
    size: Callable[[float], float] = lambda alpha: 1.0
    reach: Callable[[float], tuple[float, float]] | None = None


def _sigmoid(x: Floats) -> Floats:
    smaller = np.exp(-np.abs(x))
    return np.asarray(np.where(x >= 0, 1.0, smaller) / (1 + smaller))


def _sigmoid_slope(x: Floats, alpha: float, beta: float) -> Floats:
    return _sigmoid(x) * _sigmoid(-x)


def _tanh_slope(x: Floats) -> Floats:
    return np.asarray(1 - np.tanh(x) ** 2)


def _leaky_slope(x: Floats, alpha: float, beta: float) -> Floats:
    return np.where(x > 0, 1.0, np.where(x < 0, abs(alpha), max(1.0, abs(alpha))))


def _elu(x: Floats, alpha: float, beta: float) -> Floats:
    return np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0.0)))


def _elu_slope(x: Floats, alpha: float, beta: float) -> Floats:
    return _leaky_slope(x, alpha, beta) * np.exp(np.minimum(x, 0.0))


KINDS: dict[str, Kind] = {
    "sigmoid": Kind(
        lambda x, a, b: _sigmoid(x), _sigmoid_slope, exponential=True, reach=lambda alpha: (0.0, 1.0)
    ),
    "tanh": Kind(
        lambda x, a, b: np.asarray(np.tanh(x)),
        lambda x, a, b: _tanh_slope(x),
        exponential=True,
        reach=lambda alpha: (-1.0, 1.0),
    ),
    "relu": Kind(lambda x, a, b: np.maximum(x, 0.0), lambda x, a, b: np.asarray(np.where(x < 0, 0.0, 1.0))),
    "leakyrelu": Kind(
        lambda x, a, b: np.where(x < 0, a * x, x), _leaky_slope, arguments=1, defaults=(0.01, None)
    ),
    "elu": Kind(
        _elu, _elu_slope, arguments=1, defaults=(1.0, None), exponential=True, size=lambda alpha: abs(alpha)
    ),
    "hardsigmoid": Kind(
        lambda x, a, b: np.clip(a * x + b, 0.0, 1.0),
        lambda x, a, b: np.full_like(x, abs(a)),
        arguments=2,
        defaults=(0.2, 0.5),
        reach=lambda alpha: (0.0, 1.0),
    ),
    "affine": Kind(lambda x, a, b: a * x + b, lambda x, a, b: np.full_like(x, abs(a)), arguments=2),
    "scaledtanh": Kind(
        lambda x, a, b: np.asarray(a * np.tanh(b * x)),
        lambda x, a, b: np.asarray(abs(a * b) * _tanh_slope(b * x)),
        arguments=2,
        exponential=True,
        size=lambda alpha: abs(alpha),
        reach=lambda alpha: (-abs(alpha), abs(alpha)),
    ),
    "softsign": Kind(
        lambda x, a, b: x / (1 + np.abs(x)),
        lambda x, a, b: np.asarray(1 / (1 + np.abs(x)) ** 2),
        reach=lambda alpha: (-1.0, 1.0),
    ),
    "softplus": Kind(
        lambda x, a, b: np.asarray(np.logaddexp(0.0, x)), lambda x, a, b: np.ones_like(x), exponential=True
    ),
    "thresholdedrelu": Kind(
        lambda x, a, b: np.where(x > a, x, 0.0),
        lambda x, a, b: np.ones_like(x),
        arguments=1,
        defaults=(1.0, None),
    ),
}
"""By the lower-case name."""


@dataclass(frozen=True)
class Activation:
    """A function with its alpha and beta."""

    kind: Kind
    alpha: float
    beta: float

    def __call__(self, a: Bounded, arithmetic: Arithmetic) -> Bounded:
        """Return the function of a number that is within its error."""
        x, error = a.value, np.broadcast_to(a.errors(), a.value.shape)
        kind, arguments = self.kind, (self.alpha, self.beta)
        value = kind.function(x, *arguments)
        nearest = np.sign(x) * np.maximum(np.abs(x) - error, 0.0)
        inherited = kind.slope(nearest, *arguments) * error + self._jump(x, error)
        if kind.reach is not None:
            low, high = kind.reach(self.alpha)
            inherited = np.fmin(inherited, np.maximum(value - low, high - value))
        inherited = inherited + self._own(x, value, arithmetic)
        variance: Floats | float = 0.0
        if arithmetic.deviations:
            own = FUNCTION_VARIANCE * np.maximum(np.abs(value), kind.size(self.alpha)) ** 2
            variance = kind.slope(x, *arguments) ** 2 * a.variances()
            variance = variance + (arithmetic.u**2 * own if kind.exponential else 0.0)
        return rounded(value, inherited, arithmetic, variance=variance)

    def largest(self, arithmetic: Arithmetic) -> float:
        """Return how large a computed value can be at all, inf if there is no limit."""
        if self.kind.reach is None:
            return float("inf")
        low, high = self.kind.reach(self.alpha)
        return max(-low, high) * (1 + 2 * FUNCTION_ROUNDINGS * max(arithmetic.u, arithmetic.u_s))

    def _jump(self, x: Floats, error: Floats) -> Floats | float:
        """Return what a threshold within the error of x may change."""
        if self.kind is not KINDS["thresholdedrelu"]:
            return 0.0
        return np.where((np.abs(x - self.alpha) <= error) & (error > 0), np.abs(x), 0.0)

    def _own(self, x: Floats, value: Floats, arithmetic: Arithmetic) -> Floats:
        """Return how far the function itself may be off: a product with alpha or beta and a sum round as well."""
        u = arithmetic.u
        if self.kind.exponential:
            return np.asarray(FUNCTION_ROUNDINGS * u * np.maximum(np.abs(value), self.kind.size(self.alpha)))
        linear = (
            2 * (abs(self.alpha) * np.abs(x) + abs(self.beta)) if self.kind.arguments > 1 else np.abs(value)
        )
        return np.asarray(u * linear)


def named(
    names: Sequence[str], alphas: Sequence[float] | None = None, betas: Sequence[float] | None = None
) -> list[Activation]:
    """Return the activations of these names; each takes what it needs of the lists, from their fronts.

    Raises:
        UnsupportedOperatorError: a function that is none of ONNX's, or one without a default.
    """
    given = iter(alphas or ()), iter(betas or ())
    return [_activation(name, given) for name in names]


def _activation(name: str, given: tuple[Iterator[float], Iterator[float]]) -> Activation:
    kind = KINDS.get(name.lower())
    if kind is None:
        raise UnsupportedOperatorError(f"the activation {name}")
    values = [0.0, 0.0]
    for index in range(kind.arguments):
        value = next(given[index], kind.defaults[index])
        if value is None:
            raise UnsupportedOperatorError(f"the activation {name} without {('alpha', 'beta')[index]}")
        values[index] = float(value)
    return Activation(kind, *values)
