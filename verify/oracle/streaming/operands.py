"""Keys, values and queries of one head as the two passes want them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from onnx_attest.verify.oracle.streaming.masks import Masks
from onnx_attest.verify.oracle.streaming.terms import Terms
from onnx_attest.verify.oracle.streaming.tiles import Workspace, row_dot

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

    keys: Floats  # (keys, d)
    sizes: Array  # (keys, inner), the right factor of W's size-product
    squares: Array  # (keys, d + 1), of q^2.K^2
    values: Floats  # (keys, 3 d_v): V, |V| and V^2
    short: Array  # the same, for magnitudes
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
        largest = np.maximum(v.max(0, initial=0.0), -v.min(0, initial=0.0))
        # In float64 any power of two up to these is a factor; none of them is beyond its range.
        exponent = np.clip(np.frexp(np.where(np.isfinite(largest), largest, 0.0))[1], -1000, 1000)
        values = work.take("values", (keys, 3 * d_v))
        scaled = np.multiply(v, np.ldexp(1.0, -exponent), out=values[:, :d_v])
        absolute = np.abs(scaled, out=values[:, d_v : 2 * d_v])
        np.multiply(scaled, scaled, out=values[:, 2 * d_v :])
        largest, size = absolute.max(0, initial=0.0), np.abs(k, out=work.take("size", k.shape))
        smallest = np.where(absolute > 0, absolute, 1.0).min(0, initial=1.0)
        tame = tame and bool(np.all(largest <= _SPREAD * smallest) and size.max(initial=0.0) <= TAME)
        dtype = np.float32 if tame and np.all((largest > 2.0**-10) | (largest == 0)) else np.float64
        sizes = work.take("sizes", (keys, (2 if q_error else 1) * d + 1), dtype)
        np.multiply(size, terms.size if terms.known else 0.0, out=sizes[:, :d], casting="same_kind")
        if k_error is not None:
            sizes[:, :d] += terms.inherited * k_error
        if q_error:
            sizes[:, d:-1] = terms.inherited * (size + (0.0 if k_error is None else k_error))
        sizes[:, -1] = terms.constant
        squares = work.take("squares", (keys, d + 1), dtype)
        np.multiply(size, size, out=size)
        np.multiply(size, terms.square, out=squares[:, :d], casting="same_kind")
        squares[:, -1] = 1.0
        short = work.take("short", values.shape, dtype)
        np.copyto(short, values, casting="same_kind")
        own_error = None if v_error is None else v_error * np.ldexp(1.0, -exponent)
        return cls(
            keys=k,
            sizes=sizes,
            squares=squares,
            values=values,
            short=short,
            value_error=own_error,
            factor=np.ldexp(1.0, exponent),
            finite=bool(np.all(np.isfinite(largest))),
            high=scaled.max(0, initial=-np.inf),
            low=scaled.min(0, initial=np.inf),
            largest=largest,
            largest_error=0.0 if own_error is None else own_error.max(0, initial=0.0),
            key_norm=float(np.sqrt(size.sum(1).max(initial=0.0))),
            size_norm=float(np.sqrt(row_dot(sizes, sizes).max(initial=0.0))),
            dtype=dtype,
        )


@dataclass(frozen=True, slots=True, eq=False)
class Queries:
    """One head of queries, the error they carry, and what hides keys from them."""

    q: Floats
    error: Any
    masks: Masks
