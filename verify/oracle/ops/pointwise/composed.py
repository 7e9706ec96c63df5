"""What operators share that ONNX defines by others: each step may be an operation of its own in a runtime."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from onnx_attest.verify.arithmetic import Arithmetic
from onnx_attest.verify.oracle.bounded import Bounded, rounded
from onnx_attest.verify.oracle.ops.operator import Node


def each_stored(arithmetic: Arithmetic) -> Arithmetic:
    """Return the arithmetic in which each step may be stored as values of the graph are."""
    return replace(arithmetic, u=max(arithmetic.u, arithmetic.u_s))


def in_steps(arithmetic: Arithmetic) -> Arithmetic:
    """Return the arithmetic of all steps but the last: a kernel keeps them in the precision it works in."""
    kernel = arithmetic.kernel
    kept = None if kernel is None else replace(kernel, storing=kernel.working)
    return replace(each_stored(arithmetic), kernel=kept)


def stored(a: Bounded, arithmetic: Arithmetic, roundings: float = 1.0) -> Bounded:
    """Return the result of the last step as the graph holds it."""
    return rounded(a.value, a.errors(), arithmetic, roundings, variance=a.variances())


def coefficient(node: Node, attribute: str, default: float, arithmetic: Arithmetic) -> Bounded:
    """Return a floating attribute, a float32 number, as a runtime may hold it: cast to a shorter format, or not."""
    given = node.real(attribute, float(np.float32(default)))
    u = max(arithmetic.u, arithmetic.u_s)
    mantissa, _ = np.frexp(given.value)
    cast = np.where((mantissa / u) % 1 == 0, 0.0, u * np.abs(given.value))
    error = given.errors() + cast
    return Bounded(given.value, error if error.any() else None)
