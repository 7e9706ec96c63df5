"""Einsum: products of any number of tensors, summed over the labels that the result does not have."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from onnx_attest.verify.arithmetic import Arithmetic, gamma
from onnx_attest.verify.oracle import bounded
from onnx_attest.verify.oracle.attention import weighted_sum, with_policy
from onnx_attest.verify.oracle.bounded import KAPPA, Array, Bounded, Floats, sum_variance
from onnx_attest.verify.oracle.ops.operator import (
    Inputs,
    Node,
    Operator,
    UnsupportedOperatorError,
    tensors,
)

Labels = tuple[str, ...]
_ELLIPSIS = "..."


def product(a: Bounded, b: Bounded, empty_rows: str, arithmetic: Arithmetic) -> Bounded:
    """Return a @ b, with the centred bound where a is attention weights."""
    if a.softmax is not None and min(a.value.ndim, b.value.ndim) > 1:
        return weighted_sum(with_policy(a, empty_rows, arithmetic), b, arithmetic)
    return bounded.matmul(a, b, arithmetic)


def _einsum(node: Node, inputs: Inputs, arithmetic: Arithmetic) -> list[Bounded]:
    operands = tensors(inputs)
    terms, output = _parsed(node.get("equation"), [part.value.ndim for part in operands])
    if not operands[0].is_float:
        return [_of_integers(operands, terms, output)]
    if len(operands) > 2 and arithmetic.kernel is None:
        return [_of_many(operands, terms, output, arithmetic)]
    made, labels = _diagonal(operands[0], terms[0])
    for index, (operand, term) in enumerate(zip(operands[1:], terms[1:], strict=True), 1):
        later = {label for rest in terms[index + 1 :] for label in rest}
        other, other_labels = _diagonal(operand, term)
        made, labels = _contracted(
            (made, labels), (other, other_labels), {*output, *later}, node.empty_rows, arithmetic
        )
    return [_arranged(_summed(made, labels, set(output), arithmetic), output)]


def _parsed(equation: str, ranks: Sequence[int]) -> tuple[list[Labels], Labels]:
    """Return the labels of each operand and of the result; those that an ellipsis stands for are numbered from behind.

    Raises:
        UnsupportedOperatorError: the equation does not fit the operands.
    """
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if len(terms) != len(ranks):
        raise UnsupportedOperatorError(f"Einsum {equation} of {len(ranks)} operands")
    read = [_labels(term, rank) for term, rank in zip(terms, ranks, strict=True)]
    if any(len(labels) != rank for labels, rank in zip(read, ranks, strict=True)):
        raise UnsupportedOperatorError(f"Einsum {equation} of operands with {list(ranks)} axes")
    wide = max((label for labels in read for label in labels if label.isdigit()), key=int, default="")
    hidden = tuple(str(number) for number in range(int(wide or 0), 0, -1))
    if arrow:
        before, ellipsis, behind = right.partition(_ELLIPSIS)
        return read, (*before, *(hidden if ellipsis else ()), *behind)
    count = Counter(label for labels in read for label in labels)
    return read, (*hidden, *sorted(label for label in count if count[label] == 1 and not label.isdigit()))


def _labels(term: str, rank: int) -> Labels:
    before, ellipsis, behind = term.partition(_ELLIPSIS)
    hidden = rank - len(before) - len(behind) if ellipsis else 0
    return (*before, *(str(number) for number in range(hidden, 0, -1)), *behind)


def _numbered(terms: Sequence[Labels]) -> list[list[int]]:
    """Return the terms as np.einsum takes them."""
    numbers: dict[str, int] = {}
    return [[numbers.setdefault(label, len(numbers)) for label in term] for term in terms]


def _einsum_of(arrays: Sequence[Array], terms: Sequence[Labels], output: Labels) -> Array:
    numbers = _numbered([*terms, output])
    given = [part for pair in zip(arrays, numbers, strict=False) for part in pair]
    return np.asarray(np.einsum(*given, numbers[-1], optimize=len(arrays) > 2))


def _of_integers(operands: Sequence[Bounded], terms: Sequence[Labels], output: Labels) -> Bounded:
    arrays = [part.value for part in operands]
    return Bounded(_einsum_of(arrays, terms, output).astype(arrays[0].dtype))


def _diagonal(a: Bounded, labels: Labels) -> tuple[Bounded, Labels]:
    """Return the same with each label once."""
    once = tuple(dict.fromkeys(labels))
    if once == labels:
        return a, labels
    return a.moved(lambda array: _einsum_of([array], [labels], once)), once


def _summed(a: Bounded, labels: Labels, kept: set[str], arithmetic: Arithmetic) -> tuple[Bounded, Labels]:
    """Return the sum over the labels that are not kept."""
    axes = tuple(axis for axis, label in enumerate(labels) if label not in kept)
    if not axes:
        return a, labels
    result = bounded.total(a, axes, keepdims=False, arithmetic=arithmetic)
    return result, tuple(label for label in labels if label in kept)


def _arranged(a: tuple[Bounded, Labels], output: Labels) -> Bounded:
    result, labels = a
    if labels == output:
        return result
    order = [labels.index(label) for label in output]
    return _placed(result, lambda array: array.transpose(order))


def _placed(a: Bounded, move: Callable[[Array], Array]) -> Bounded:
    """Return the same numbers in other places, with what is known of them as a product."""
    magnitude = None if a.magnitude is None else move(np.broadcast_to(a.magnitude, a.value.shape))
    return replace(a.moved(move), magnitude=magnitude, attended=a.attended)


def _contracted(
    left: tuple[Bounded, Labels],
    right: tuple[Bounded, Labels],
    needed: set[str],
    empty_rows: str,
    arithmetic: Arithmetic,
) -> tuple[Bounded, Labels]:
    """Return the product of two operands, summed over the labels that nothing needs any more, as one of matrices."""
    if right[0].softmax is not None and left[0].softmax is None:
        left, right = right, left
    (a, la), (b, lb) = (
        _summed(*part, {*needed, *other[1]}, arithmetic) for part, other in ((left, right), (right, left))
    )
    shared = [label for label in la if label in lb]
    batch = [label for label in shared if label in needed]
    inner = [label for label in shared if label not in needed]
    rows, columns = ([label for label in own if label not in shared] for own in (la, lb))
    sizes = _sizes((a, la), (b, lb))
    lengths = [[sizes[label] for label in group] for group in (batch, rows, columns)]
    first = _as_matrices(a, la, (batch, rows, inner), sizes)
    second = _as_matrices(b, lb, (batch, inner, columns), sizes)
    result = product(first, second, empty_rows, arithmetic)
    shape = tuple(length for group in lengths for length in group)
    if result.value.shape != shape:
        result = _placed(result, lambda array: array.reshape(shape))
    return result, (*batch, *rows, *columns)


def _sizes(*operands: tuple[Bounded, Labels]) -> dict[str, int]:
    """Return the length of each label; an axis of one stands for as many as the other operand has."""
    sizes: dict[str, int] = {}
    for operand, labels in operands:
        for label, length in zip(labels, operand.value.shape, strict=True):
            sizes[label] = length if sizes.get(label, 1) == 1 else sizes[label]
    return sizes


def _as_matrices(
    a: Bounded, labels: Labels, groups: tuple[list[str], list[str], list[str]], sizes: dict[str, int]
) -> Bounded:
    """Return (batch, ..., first, second) of the groups; the operand itself, with all that is known, if it is that."""
    batch, first, second = groups
    wanted = (*batch, *first, *second)
    lengths = [sizes[label] for label in wanted]
    if labels == wanted and len(first) == len(second) == 1 and list(a.value.shape) == lengths:
        return a
    order = [labels.index(label) for label in wanted]
    shape = (
        *lengths[: len(batch)],
        *(int(np.prod([sizes[label] for label in group], dtype=np.int64)) for group in (first, second)),
    )
    return a.moved(lambda array: np.broadcast_to(array.transpose(order), lengths).reshape(shape))


def _of_many(
    operands: Sequence[Bounded], terms: Sequence[Labels], output: Labels, arithmetic: Arithmetic
) -> Bounded:
    """Return a product of three or more, contracted in any order.

    With m operands and n products under each sum, a term meets m - 1 products and at most n - 1 sums; what is made on
    the way, and an operand that is summed before, may be stored, and cast when it enters a product.
    """
    values = [part.value for part in operands]
    value = _einsum_of(values, terms, output)
    largest = [np.abs(part.value) + part.errors() for part in operands]
    size = _einsum_of([np.abs(array) for array in values], terms, output)
    inherited = np.zeros_like(value)
    for index, part in enumerate(operands):
        if part.error is not None:
            error = np.broadcast_to(part.error, part.value.shape)
            mixed = [*largest[:index], error, *(np.abs(array) for array in values[index + 1 :])]
            inherited = inherited + _einsum_of(mixed, terms, output)
    products, terms_summed = len(operands) - 1, _count(operands, terms, output)
    casts = gamma(2 * products, arithmetic.u_in) + gamma(len(operands) + products, arithmetic.u_s)
    relative = gamma(terms_summed + products, arithmetic.u_acc) + casts
    with np.errstate(invalid="ignore"):
        error = inherited + relative * (size + inherited) + (terms_summed + products) * arithmetic.omega
    known = np.where(np.isnan(error), np.inf, error)
    return Bounded(
        value,
        np.where(np.isfinite(value), known, 0.0),
        size,
        variance=_variance_of_many(operands, terms, output, terms_summed, arithmetic),
    )


def _count(operands: Sequence[Bounded], terms: Sequence[Labels], output: Labels) -> int:
    """Return how many products are under each sum."""
    sizes = _sizes(*zip(operands, terms, strict=True))
    return int(np.prod([size for label, size in sizes.items() if label not in output], dtype=np.int64))


def _variance_of_many(
    operands: Sequence[Bounded], terms: Sequence[Labels], output: Labels, count: int, arithmetic: Arithmetic
) -> Floats | None:
    """Return the variance of summing, of the products, and what the operands' own makes of it."""
    if not arithmetic.deviations:
        return None
    arrays = [part.value**2 for part in operands]
    squares = _einsum_of(arrays, terms, output)
    value = _einsum_of([part.value for part in operands], terms, output)
    steps = len(operands) - 1
    u2 = arithmetic.u_acc**2 + arithmetic.u_s**2 + 2 * arithmetic.u_in**2
    whole = sum_variance(value, squares, count, arithmetic) + KAPPA * steps * u2 * squares
    for index, part in enumerate(operands):
        if part.variance is not None:
            own = np.broadcast_to(part.variance, part.value.shape)
            whole = whole + _einsum_of([*arrays[:index], own, *arrays[index + 1 :]], terms, output)
    return np.where(np.isfinite(whole), whole, 0.0)


OPERATORS: dict[str, Operator] = {"Einsum": _einsum}
