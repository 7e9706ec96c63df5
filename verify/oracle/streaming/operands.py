"""Keys, values and queries of one head as the two passes want them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from onnx_attest.verify.oracle.streaming.masks import Masks
from onnx_attest.verify.oracle.streaming.terms import Terms
from onnx_attest.verify.oracle.streaming.tiles import Workspace

Array = NDArray[Any]
Floats = NDArray[np.float64]

TAME = 2.0**16
"""Queries and keys up to here have their products, and squares of those over u^2, in float32's range."""
_SPREAD = 2.0**60
"""Values of a column whose sizes differ by more would underflow in float32 when they are scaled together."""


@dataclass(frozen=True, slots=True, eq=False)
class KeyHead:
    """Keys and values of one head, as the products want them; shared by the queries of a group.

    Each column of V is scaled by a power of two so that it is at most 1: nothing overflows when it is squared.
    """

    keys: Floats  # (d, keys)
    sizes: Array  # (inner, keys), the right factor of W's size-product and of what W has for the whole row
    squares: Array  # (d + 1, keys), of q^2.K^2 and of what v has for the whole row
    values: Floats  # (keys, d_v)
    short: Array  # (3, keys, d_v): V, |V| and V^2 for magnitudes
    value_error: Floats | None
    factor: Floats  # (d_v,): the power of two that V was divided by
    finite: bool  # else a hidden value has a part in the output: 0 * NaN is NaN
    high: Floats
    low: Floats
    largest: Floats
    largest_error: Floats | float
    key_norm: float
    size_norm: float
    dtype: DTypeLike

    @classmethod
    def of(
        cls,
        k: Floats,
        v: Floats,
        k_error: Any,
        v_error: Any,
        terms: Terms,
        work: Workspace,
        *,
        tame: bool,
        q_error: bool,
    ) -> KeyHead:
        """Scale the values, multiply the coefficients into the keys, and choose the dtype of magnitudes."""
        (keys, d), d_v = k.shape, v.shape[1]
        high, low = v.max(0, initial=-np.inf), v.min(0, initial=np.inf)
        largest = np.maximum(np.maximum(high, -low), 0.0)
        # In float64 any power of two up to these is a factor; none of them is beyond its range.
        exponent = np.clip(np.frexp(np.where(np.isfinite(largest), largest, 0.0))[1], -1000, 1000)
        shrink = np.ldexp(1.0, -exponent)
        values = np.multiply(v, shrink, out=work.take("values", (keys, d_v)))
        largest = largest * shrink
        smallest = np.abs(values, out=work.take("absolute", (keys, d_v)))
        smallest = np.where(smallest > 0, smallest, 1.0).min(0, initial=1.0)
        transposed = work.take_skewed("keys", d, keys)
        np.copyto(transposed, k.T)
        tame = tame and bool(k.max(initial=0.0) <= TAME and k.min(initial=0.0) >= -TAME)
        tame = tame and bool(
            np.all((largest <= _SPREAD * smallest) & ((largest > 2.0**-10) | (largest == 0)))
        )
        dtype = np.float32 if tame else np.float64
        sizes = work.take_skewed("sizes", (2 if q_error else 1) * d + 1, keys, dtype)
        np.abs(transposed, out=sizes[:d], casting="same_kind")
        sizes[:d] *= terms.size if terms.known else 0.0
        if k_error is not None:
            sizes[:d] += terms.inherited * k_error.T
        if q_error:
            sizes[d:-1] = terms.inherited * (np.abs(transposed) + (0.0 if k_error is None else k_error.T))
        sizes[-1] = 1.0
        squares = work.take_skewed("squares", d + 1, keys, dtype)
        np.multiply(transposed, transposed, out=squares[:d], casting="same_kind")
        squares[:d] *= terms.square
        squares[-1] = 1.0
        short = work.take("short", (3, keys, d_v), dtype)
        np.copyto(short[0], values, casting="same_kind")
        np.abs(short[0], out=short[1])
        np.multiply(short[0], short[0], out=short[2])
        own_error = None if v_error is None else v_error * shrink
        return cls(
            keys=transposed,
            sizes=sizes,
            squares=squares,
            values=values,
            short=short,
            value_error=own_error,
            factor=np.ldexp(1.0, exponent),
            finite=bool(np.all(np.isfinite(largest))),
            high=high * shrink,
            low=low * shrink,
            largest=largest,
            largest_error=0.0 if own_error is None else own_error.max(0, initial=0.0),
            key_norm=float(np.sqrt(np.vecdot(k, k).max(initial=0.0))),
            size_norm=float(np.sqrt(np.square(sizes[:-1]).sum(0).max(initial=0.0))),
            dtype=dtype,
        )

    @property
    def count(self) -> int:
        """Number of keys."""
        return int(self.keys.shape[1])


@dataclass(frozen=True, slots=True, eq=False)
class Queries:
    """One head of queries, the error they carry, and what hides keys from them."""

    q: Floats
    error: Any
    masks: Masks
