"""What the arithmetic does to a logit: the coefficients of W, its error bound, and of v, its variance."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from onnx_attest.verify.arithmetic import Arithmetic, gamma
from onnx_attest.verify.oracle.attention import TANH_ERROR
from onnx_attest.verify.oracle.bounded import FUNCTION_VARIANCE, KAPPA

FUNCTION = FUNCTION_VARIANCE / KAPPA
"""Mean square error of an exponential or a tanh in units of kappa u^2, those of v."""
_SECOND_ORDER = 2.0**-20  # products of W's own terms, as in the dense oracle


@dataclass(frozen=True, slots=True)
class Terms:
    """The coefficients of W and of v, the variance of a logit, for one arithmetic; W is linear in its parts.

    W = unit (size-product + raw |s q.K| + capped |y| + stored |l| + bias eb + m - l), with y the capped score, and the
    size-product |q| . (size |K| + inherited E_K) + E_q . inherited (|K| + E_K) + constant.
    v = variance (score (s q.K)^2 + square s^2 q^2.K^2 + (m - l)^2 + of_biased l^2 + FUNCTION); a cap multiplies the
    first two by its slope squared and adds of_capped y^2 + FUNCTION cap^2.
    """

    arithmetic: Arithmetic
    scale: float
    softcap: float
    biased: bool
    unit: float
    size: float
    inherited: float
    raw: float
    capped: float
    stored: float
    bias: float
    constant: float
    floor: float
    variance: float
    score: float
    square: float
    of_capped: float
    of_biased: float

    @classmethod
    def of(
        cls,
        a: Arithmetic,
        d: int,
        keys: int,
        scale: float,
        scale_error: float,
        softcap: float,
        *,
        biased: bool,
    ) -> Terms:
        """Collect what `bounded.matmul`, `multiply`, `add` and the dense `attention` do to a logit, in their order."""
        u = max(a.u, a.u_s)
        product = gamma(d + 1, a.u_acc) + 2 * a.u_in * (1 + a.u_in)
        factor = (1 + a.c_s * u) * (abs(scale) + scale_error)
        size = factor * product + a.c_s * u * abs(scale)
        inherited = factor * (1 + product + a.u_s)
        of_value = factor * a.u_s + (1 + a.c_s * u) * scale_error
        constant = factor * (d + 1) * a.omega + a.omega
        if scale:
            raw = of_value / abs(scale) + a.c_s * u
        else:  # |q.K| cannot be had from s q.K, but |q||K| is at least as large
            size, raw = size + of_value, 0.0
        parts = np.array([size, inherited, raw, 0.0, constant, 0.0])
        if softcap:
            parts *= 1 + u
            parts[3] = 2 * a.u * (1 + u) + u
            parts[4] += TANH_ERROR * a.u * abs(softcap) * (1 + u) + a.omega
        if biased:
            parts *= 1 + u
            parts[4] += a.omega
            parts[5] = 1 + u
        rescalings = -(-keys // a.key_block)
        floor = a.c_exp * a.u + rescalings * (a.c_exp + 1) * a.u
        per = a.u + a.u_s
        ratio, stored, cast = (a.u_acc / a.u) ** 2, (a.u_s / a.u) ** 2, (a.u_in / a.u) ** 2
        size, inherited, raw, capped, constant, of_bias = (float(part) for part in parts / per)
        return cls(
            arithmetic=a, scale=scale, softcap=softcap, biased=biased,
            unit=per * (1 + max(a.u_s, 2 * a.u_in) + _SECOND_ORDER),
            size=size, inherited=inherited, raw=raw, capped=capped, stored=u / per if biased else 0.0, bias=of_bias,
            constant=constant + floor / per, floor=floor / per,
            variance=KAPPA * a.u**2, score=ratio * (d + 1) / 3 + 2 * stored + 1, square=ratio * (d + 1) / 6 + 2 * (cast + stored),
            of_capped=1 + stored, of_biased=1 + stored if biased else 0.0,
        )  # fmt: skip

    @property
    def plain(self) -> bool:
        """Whether a logit is a scaled product and nothing else."""
        return not self.biased and not self.softcap

    @property
    def known(self) -> bool:
        """Whether there is a bound on a logit at all; a product in half precision may stall."""
        return bool(np.isfinite(self.size))
