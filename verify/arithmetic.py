"""The arithmetic profiles: in which formats a runtime computes (NUMERICS.md section 1, table of profiles)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from onnx_attest.errors import UsageError

if TYPE_CHECKING:
    from onnx_attest.verify.oracle.kernels import Kernel


@dataclass(frozen=True)
class Arithmetic:
    """Unit roundoffs of one arithmetic, and the constants of the bound.

    Attributes:
        u: of elementwise operations.
        u_acc: of the accumulation in matrix products.
        u_in: of casting a product's operands, 0 if they are taken as they are.
        u_s: of storing logits, 0 if they are kept in the elementwise format.
        u_p: of casting the softmax weights before the second product.
        u_out: of the format outputs are stored in.
        omega: what one exponential may lose to flushing; 2^-126 covers flush to zero and MLAS' clamp at -88.376.
        eta: smallest subnormal of the output format.
        c_exp: error of an exponential in units of u; the worst measured is NumPy's, 2.39 ulp, under 4 of ours
            for results away from a power of two.
        c_s: roundings of a scale: it is itself rounded, may be split over q and k, and is applied.
        c_o: roundings of an output.
        largest: the largest finite number that values between nodes are stored in.
        key_block: the smallest block of keys an online softmax walks in; torch's CPU kernel takes 512. Runtimes
            that do not rescale are within the same bound.
        deviations: whether a variance is carried along with each bound.
        kernel: how products and sums are carried out, if they are to be computed in this arithmetic instead of
            exactly; then there are no bounds.
    """

    name: str
    u: float
    u_acc: float
    u_in: float
    u_s: float
    u_p: float
    u_out: float
    omega: float = 2.0**-126
    eta: float = 2.0**-149
    c_exp: float = 4.0
    c_s: float = 4.0
    c_o: float = 2.0
    largest: float = 2.0**128 * (1 - 2.0**-24)
    key_block: int = 512
    deviations: bool = False
    kernel: Kernel | None = None

    @property
    def bits(self) -> int:
        """p, the significant bits of the declared format: of the shortest one that operands or stored values have."""
        return _BITS[self.name]

    @property
    def resolution(self) -> float:
        """The unit roundoff that a systematic error has to exceed to be told from a rounded constant."""
        return max(self.u, self.u_s, self.u_in)

    @property
    def largest_sum(self) -> float:
        """The largest number of the format that sums are kept in."""
        if self.u_acc >= _U16:
            return self.largest
        return float(PROFILES["fp32"].largest) if self.u_acc > 4 * _U64 else self.largest

    @property
    def masked_below(self) -> float:
        """Below half of the stored range a logit comes from a mask: exporters write -inf, or the lowest number."""
        return -self.largest / 2


_BITS = {
    "fp64": 53, "fp32": 24, "tf32": 11, "fp16": 11, "fp16-unfused": 11, "fp16-steps": 11, "fp16-acc": 11,
    "bf16": 8, "bf16-unfused": 8, "bf16-acc": 8,
}  # fmt: skip
_U64, _U32, _U16, _UB16, _UTF32 = 2.0**-53, 2.0**-24, 2.0**-11, 2.0**-8, 2.0**-10


def _short(name: str, u: float, u_acc: float, stored: float, *, logits: float | None = None) -> Arithmetic:
    """Return a profile of half precision: u and u_acc inside operations, `stored` for every value between them.

    `logits` is what they are stored in, if it is another format than the other values'.
    """
    if stored == _U16:
        omega, eta, largest = 2.0**-24, 2.0**-24, 65504.0
    else:
        omega, eta, largest = 2.0**-126, 2.0**-133, 2.0**128 * (1 - 2.0**-8)
    u_s = stored if logits is None else logits
    return Arithmetic(name, u, u_acc, 0.0, u_s, stored, stored, omega=omega, eta=eta, largest=largest)


PROFILES: dict[str, Arithmetic] = {
    profile.name: profile
    for profile in (
        # The exact values are float64 themselves: both sides round, so each of these is twice 2^-53.
        Arithmetic(
            "fp64",
            2 * _U64,
            2 * _U64,
            0.0,
            0.0,
            0.0,
            2 * _U64,
            omega=2.0**-1022,
            eta=2.0**-1074,
            largest=2.0**1023,
        ),
        Arithmetic("fp32", _U32, _U32, 0.0, 0.0, 0.0, _U32),
        Arithmetic("tf32", _U32, 2 * _U32, _UTF32, 0.0, _UTF32, _U32),
        # Fused: logits never leave fp32, weights are cast before the second product.
        _short("fp16", _U32, 2 * _U32, _U16, logits=0.0),
        _short("bf16", _U32, 2 * _U32, _UB16, logits=0.0),
        # Unfused: every value between nodes is stored in the short format. It covers runtimes that compute such a
        # graph in fp32 with casts, and those that keep some values longer.
        _short("fp16-unfused", _U32, 2 * _U32, _U16),
        _short("bf16-unfused", _U32, 2 * _U32, _UB16),
        # Every operation rounds to the short format, sums are kept in fp32: NumPy in float16.
        _short("fp16-steps", _U16, 2 * _U32, _U16),
        # Every operation and every sum in the short format: NumPy in bfloat16, whose sums stall.
        _short("fp16-acc", _U16, _U16, _U16),
        _short("bf16-acc", _UB16, _UB16, _UB16),
    )
}

OF_DTYPE = {"float64": "fp64", "float32": "fp32", "float16": "fp16-unfused", "bfloat16": "bf16-unfused"}
"""The arithmetic that a runtime is declared to compute a graph of this dtype in, if it does not say otherwise."""


TIGHTEST_FIRST: dict[str, tuple[str, ...]] = {
    "float64": ("fp64", "fp32"),
    "float32": ("fp32", "tf32", "fp16-unfused", "bf16-unfused"),
    "float16": ("fp32", "fp16-unfused", "fp16-steps", "fp16-acc", "bf16-unfused"),
    "bfloat16": ("fp32", "bf16-unfused", "bf16-acc"),
}
"""What a runtime may turn out to have computed a graph of this dtype in: the first whose bound holds."""


_NUMPYS_OWN = 1


def largest_of(dtype: np.dtype[Any]) -> float:
    """Return the largest finite number of a floating dtype, bfloat16 included."""
    if dtype.isbuiltin == _NUMPYS_OWN:
        return float(np.finfo(dtype).max)
    import ml_dtypes  # late, because this import alone takes half a second

    return float(ml_dtypes.finfo(dtype).max)


def profile(name: str) -> Arithmetic:
    """Return the profile of this name.

    Raises:
        UsageError: an unknown name; the message lists those there are.
    """
    if name not in PROFILES:
        raise UsageError(f"unknown arithmetic {name!r}; there are {', '.join(PROFILES)}")
    return PROFILES[name]


def gamma(terms: float, u: float) -> float:
    """Return n u / (1 - n u), the relative error of n roundings in sequence (Higham, chapter 3); inf if n u >= 1."""
    product = terms * u
    return product / (1.0 - product) if product < 1.0 else float("inf")
