"""Effective bits, calibrated on kernels of known precision: every product and every sum rounded to so many bits."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import pytest

from onnx_attest.verify.arithmetic import PROFILES
from onnx_attest.verify.noise import Yardstick
from onnx_attest.verify.oracle.attention import attention
from onnx_attest.verify.oracle.bounded import exact
from onnx_attest.verify.oracle.graph import Evaluation

QUERIES, WIDTH = 24, 64
LENGTHS = (16, 128, 512, 2048)
DECLARED_BITS = 24


def rounded(x, bits):
    """Round to `bits` significant bits (Veltkamp's splitting): exact in float64 for 8 to 24 of them."""
    spread = x * (2.0 ** (53 - bits) + 1)
    return spread - (spread - x)


def sequential(terms, bits):
    total = np.zeros(terms.shape[:-1])
    for index in range(terms.shape[-1]):
        total = rounded(total + terms[..., index], bits)
    return total


def pairwise(terms, bits):
    while terms.shape[-1] > 1:
        if terms.shape[-1] % 2:
            terms = np.concatenate((terms, np.zeros((*terms.shape[:-1], 1))), -1)
        terms = rounded(terms[..., ::2] + terms[..., 1::2], bits)
    return terms[..., 0]


def in_lanes(terms, bits):
    """Eight partial sums, added up at the end, as a vector unit does it."""
    lanes = np.zeros((*terms.shape[:-1], 8))
    for start in range(0, terms.shape[-1], 8):
        part = terms[..., start : start + 8]
        lanes[..., : part.shape[-1]] = rounded(lanes[..., : part.shape[-1]] + part, bits)
    return pairwise(lanes, bits)


def fair(terms, bits):
    """Sequential, each sum rounded up or down at random, in proportion to how near it is."""
    rng = np.random.default_rng(bits)
    total = np.zeros(terms.shape[:-1])
    for index in range(terms.shape[-1]):
        exact_sum = total + terms[..., index]
        _, exponent = np.frexp(exact_sum)
        unit = np.ldexp(1.0, exponent - bits)
        total = np.floor(exact_sum / unit + rng.random(exact_sum.shape)) * unit
    return total


ORDERS = {"sequential": sequential, "pairwise": pairwise, "lanes": in_lanes}


@cache
def problem(length):
    rng = np.random.default_rng(length)
    q, k, v = (rng.standard_normal((count, WIDTH)) for count in (QUERIES, length, length))
    # Not rounded any further: every simulated kernel takes the same inputs, as they are, and rounds what it makes of them.
    q, k, v = (a.astype(np.float32).astype(np.float64) for a in (1.5 * q, 1.5 * k, v[:, :8]))
    scale = WIDTH**-0.5

    def evaluate(arithmetic, *, logit_factor=1.0):
        inside = attention(exact(q), exact(k), exact(v), arithmetic, scale=scale * logit_factor)
        return Evaluation({"output": inside[0]}, ())

    return q, k, v, scale, Yardstick.of(evaluate, PROFILES["fp32"], np.dtype(np.float32))


def simulated(order: Callable, length: int, bits: int):
    q, k, v, scale, _ = problem(length)

    def product(a, b):
        return np.stack([order(rounded(row * b, bits), bits) for row in a])

    logits = rounded(product(q, k) * scale, bits)
    e = rounded(np.exp(rounded(logits - logits.max(-1, keepdims=True), bits)), bits)
    weights = rounded(e / order(e, bits)[:, None], bits)
    return np.stack([order(rounded(row * v.T, bits), bits) for row in weights])


@cache
def effective_bits(order: str, length: int, bits: int) -> float:
    summed = {**ORDERS, "fair": fair}[order]
    measured = problem(length)[-1].measure({"output": simulated(summed, length, bits)})
    assert measured.effective_bits is not None
    return measured.effective_bits


def stagnates(order, length, bits):
    """Whether a running sum of so many terms drops the small ones: rounding to nearest is then no longer fair."""
    return order == "sequential" and length * 2.0**-bits > 2.0**-6


GRID = [
    (order, length, bits)
    for order in ORDERS for length in LENGTHS for bits in (8, 11, 13, 16, 20)
]  # fmt: skip


@pytest.mark.parametrize(("order", "length", "bits"), [one for one in GRID if not stagnates(*one)])
def test_fewer_bits_are_counted(order, length, bits):
    lost = effective_bits(order, length, DECLARED_BITS) - effective_bits(order, length, bits)
    assert lost == pytest.approx(DECLARED_BITS - bits, abs=0.5)


@pytest.mark.parametrize("bits", [11, 13, 16])
def test_a_sum_that_stagnates_has_fewer_bits_than_its_format(bits):
    """Not a fault of the measure: with fair (stochastic) rounding the same sums have the bits of their format."""
    nominal = DECLARED_BITS - bits
    assert effective_bits("sequential", 2048, 24) - effective_bits("sequential", 2048, bits) > nominal + 0.9
    assert effective_bits("fair", 2048, 24) - effective_bits("fair", 2048, bits) == pytest.approx(
        nominal, abs=0.5
    )


@pytest.mark.parametrize("length", LENGTHS)
def test_a_plain_sequential_kernel_has_about_the_bits_of_its_format(length):
    assert effective_bits("sequential", length, DECLARED_BITS) == pytest.approx(DECLARED_BITS, abs=1.5)
