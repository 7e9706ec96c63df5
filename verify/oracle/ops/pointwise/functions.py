"""Functions of one number that come from a mathematical library: roots, logarithms, circular and hyperbolic ones."""

from __future__ import annotations

import math

import numpy as np

from onnx_attest.verify.oracle import bounded
from onnx_attest.verify.oracle.bounded import Floats
from onnx_attest.verify.oracle.ops.operator import Operator
from onnx_attest.verify.oracle.ops.pointwise.curves import (
    Reach,
    curve,
    ends,
    flattening,
    lipschitz,
    unary,
    within,
)
from onnx_attest.verify.oracle.ops.pointwise.error_function import erf

RECIPROCAL_ROUNDINGS = 2.0
"""An estimate that one step of Newton's improves is within two units of roundoff (Eigen's is)."""


def _beyond_poles(reach: Reach) -> Reach:
    """Return the reach of the tangent: without end where one of its poles is within the error."""

    def reached(x: Floats, error: Floats) -> Floats:
        above, below = (np.floor((x + sign * error) / np.pi + 0.5) for sign in (1.0, -1.0))
        return np.where(above == below, reach(x, error), np.inf)

    return reached


tanh = curve(np.tanh, lambda x, y: 1 - y * y, flattening(lambda x: 1 - np.tanh(x) ** 2))
"""The hyperbolic tangent."""
logarithm = within(
    curve(np.log, lambda x, y: 1 / x, ends(np.log)),
    0.0,
    missing="the logarithm of a number that is zero",
)
"""The natural logarithm."""
reciprocal = within(
    curve(
        np.reciprocal, lambda x, y: y * y, ends(np.reciprocal), size=0.0, roundings=RECIPROCAL_ROUNDINGS - 1
    ),
    0.0,
    missing="the reciprocal of a number that is zero",
)
"""1 / x."""
_erf = curve(
    erf,
    lambda x, y: 2 / math.sqrt(math.pi) * np.exp(-x * x),
    flattening(lambda x: 2 / math.sqrt(math.pi) * np.exp(-x * x)),
)
_tan = curve(np.tan, lambda x, y: 1 + y * y, _beyond_poles(ends(np.tan)))
_asin = within(
    curve(np.arcsin, lambda x, y: 1 / np.sqrt(1 - x * x), ends(np.arcsin)),
    -1.0,
    1.0,
    missing="the arc sine of a number that is 1 or -1",
)
_acos = within(
    # Libraries take pi / 2 - asin(x), and pi - acos(-x): what they lose refers to pi, however small the result is.
    curve(np.arccos, lambda x, y: 1 / np.sqrt(1 - x * x), ends(np.arccos), size=math.pi),
    -1.0,
    1.0,
    missing="the arc cosine of a number that is 1 or -1",
)
_acosh = within(
    curve(np.arccosh, lambda x, y: 1 / np.sqrt(x * x - 1), ends(np.arccosh)),
    1.0,
    missing="the inverse hyperbolic cosine of a number that is 1",
)
_atanh = within(
    curve(np.arctanh, lambda x, y: 1 / (1 - x * x), ends(np.arctanh)),
    -1.0,
    1.0,
    missing="the inverse hyperbolic tangent of a number that is 1 or -1",
)

OPERATORS: dict[str, Operator] = {
    "Exp": unary(bounded.exponential),
    "Log": unary(logarithm),
    "Sqrt": unary(bounded.root),
    "Reciprocal": unary(reciprocal),
    "Erf": unary(_erf),
    "Sin": unary(curve(np.sin, lambda x, y: np.cos(x), lipschitz(1.0))),
    "Cos": unary(curve(np.cos, lambda x, y: np.sin(x), lipschitz(1.0))),
    "Tan": unary(_tan),
    "Asin": unary(_asin),
    "Acos": unary(_acos),
    "Atan": unary(
        curve(np.arctan, lambda x, y: 1 / (1 + x * x), flattening(lambda x: np.asarray(1 / (1 + x * x))))
    ),
    "Sinh": unary(curve(np.sinh, lambda x, y: np.cosh(x), ends(np.sinh))),
    "Cosh": unary(curve(np.cosh, lambda x, y: np.sinh(x), ends(np.cosh))),
    "Tanh": unary(tanh),
    "Asinh": unary(curve(np.arcsinh, lambda x, y: 1 / np.sqrt(1 + x * x), ends(np.arcsinh))),
    "Acosh": unary(_acosh),
    "Atanh": unary(_atanh),
}
