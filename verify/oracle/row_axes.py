"""What follows an attention, evaluated for some of its rows: operators that keep rows apart, and where rows go in them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnx_attest.verify.arithmetic import Arithmetic
from onnx_attest.verify.oracle.bounded import Bounded
from onnx_attest.verify.oracle.ops.operator import Node, UnsupportedOperatorError, integers
from onnx_attest.verify.oracle.program import result_of
from onnx_attest.verify.oracle.values import Value

Rows = NDArray[np.intp]


@dataclass(frozen=True, slots=True, eq=False)
class Sliced:
    """Some rows of a value, and the axis that they are along."""

    value: Bounded
    axis: int


@dataclass(frozen=True, eq=False)
class _Call:
    """A node and what it is given, some of it in rows, of `count` in all."""

    node: Node
    given: Mapping[str, Value | Sliced]
    rows: Rows
    count: int

    def argument(self, index: int) -> Value | Sliced:
        name = self.node.inputs[index] if index < len(self.node.inputs) else ""
        return self.given[name] if name else None

    def sliced(self, index: int = 0) -> Sliced:
        """Return an argument that has to be in rows.

        Raises:
            UnsupportedOperatorError: it is not, or another one is.
        """
        if any(
            isinstance(self.argument(other), Sliced) != (other == index)
            for other in range(len(self.node.inputs))
        ):
            raise self.refused("rows in another input than its first")
        value = self.argument(index)
        assert isinstance(value, Sliced)
        return value

    def refused(self, what: str) -> UnsupportedOperatorError:
        return UnsupportedOperatorError(
            f"{self.node.name}: {self.node.operator} with {what}, behind an attention"
        )


def follow(
    node: Node, given: Mapping[str, Value | Sliced], rows: Rows, count: int, arithmetic: Arithmetic
) -> dict[str, Value | Sliced]:
    """Return what a node gives, in rows where it is given rows.

    Args:
        node: behind an attention.
        given: what it takes, by name.
        rows: which these are.
        count: how many there are in all.
        arithmetic: of the runtime.

    Raises:
        UnsupportedOperatorError: it mixes rows, or moves them where they are not followed.
    """
    if not any(isinstance(value, Sliced) for value in given.values()):
        return dict(
            result_of(
                node,
                {name: value for name, value in given.items() if not isinstance(value, Sliced)},
                arithmetic,
            )
        )
    rule = _RULES.get(node.operator)
    if rule is None:
        raise UnsupportedOperatorError(
            f"{node.name}: {node.operator} is not followed row by row, behind an attention"
        )
    arguments, axis = rule(_Call(node, given, rows, count))
    if isinstance(arguments, Bounded):  # the result itself
        return {node.outputs[0]: arguments if axis is None else Sliced(arguments, axis)}
    named = {name: value for name, value in zip(node.inputs, arguments, strict=True) if name}
    assert axis is not None
    values = result_of(node, named, arithmetic)
    return {name: Sliced(value, axis) for name, value in values.items() if isinstance(value, Bounded)}


Rule = Callable[[_Call], tuple[Sequence[Value] | Bounded, int | None]]


def _elementwise(call: _Call) -> tuple[Sequence[Value], int]:
    """Operands that broadcast to each other; a whole one, of the residual for example, is cut to the same rows."""
    arguments = [call.argument(index) for index in range(len(call.node.inputs))]
    axes = {one.value.value.ndim - one.axis for one in arguments if isinstance(one, Sliced)}
    if len(axes) != 1:
        raise call.refused("rows along different axes")
    from_the_end = axes.pop()
    dimensions = max(_array(one).ndim for one in arguments if one is not None)
    return [_cut(one, from_the_end, call) for one in arguments], dimensions - from_the_end


def _array(value: Value | Sliced) -> NDArray[Any]:
    bounded = value.value if isinstance(value, Sliced) else value
    if not isinstance(bounded, Bounded):
        raise UnsupportedOperatorError("a sequence behind an attention")
    return bounded.value


def _cut(value: Value | Sliced, from_the_end: int, call: _Call) -> Value:
    if isinstance(value, Sliced):
        return value.value
    if value is None or _array(value).ndim < from_the_end or _array(value).shape[-from_the_end] == 1:
        return value
    assert isinstance(value, Bounded)
    if value.value.shape[-from_the_end] != call.count:
        raise call.refused(f"a size of {value.value.shape[-from_the_end]} along the rows")
    return taken(value, call.rows, value.value.ndim - from_the_end)


def taken(value: Bounded, rows: Rows, axis: int) -> Bounded:
    """Return these rows of a whole value."""
    return value.moved(lambda array: array.take(rows, axis))


def _along_features(call: _Call) -> tuple[Sequence[Value], int]:
    """Operators over the last axes, from `axis` on; what they are scaled with has no rows."""
    arguments, axis = _elementwise(call)
    dimensions = _array(call.argument(0)).ndim
    if axis >= call.node.get("axis", -1) % dimensions:
        raise call.refused("its axis along the rows")
    return arguments, axis


def _product(call: _Call) -> tuple[Sequence[Value], int]:
    """A product of matrices: rows are those of its left factor."""
    left = call.sliced()
    right = call.argument(1)
    others = {name: call.node.get(name, 0) for name in ("transA", "transB", "transBatchA", "transBatchB")}
    dimensions = left.value.value.ndim
    if any(others[name] for name in ("transA", "transBatchA", "transBatchB")) or left.axis == dimensions - 1:
        raise call.refused("rows that it sums over")
    if left.axis < dimensions - 2 and _array(right).ndim > 2:
        raise call.refused("matrices for each row")
    return _others(call, left.value), left.axis + max(0, _array(right).ndim - dimensions)


def _others(call: _Call, first: Bounded) -> list[Value]:
    """Return the arguments with the first one in rows."""
    rest = [call.argument(index) for index in range(1, len(call.node.inputs))]
    return [first, *(one for one in rest if not isinstance(one, Sliced))]


def _transposed(call: _Call) -> tuple[Sequence[Value], int]:
    a = call.sliced()
    order = call.node.get("perm") or range(a.value.value.ndim)[::-1]
    return _others(call, a.value), list(order).index(a.axis)


def _reshaped(call: _Call) -> tuple[Bounded, int]:
    """The whole's new shape, as Reshape has it, with the rows that there are in place of all."""
    a = call.sliced()
    whole = _whole_shape(a, call.count)
    shape = _shape_argument(call)
    if not call.node.get("allowzero", 0):
        shape = [whole[index] if size == 0 else size for index, size in enumerate(shape)]
    if -1 in shape:
        known = math.prod(size for size in shape if size != -1)
        shape = [math.prod(whole) // known if size == -1 else size for size in shape]
    before = math.prod(whole[: a.axis])
    for axis, size in enumerate(shape):
        if size == call.count and math.prod(shape[:axis]) == before:
            shape[axis] = len(call.rows)
            return a.value.moved(lambda array: array.reshape(shape)), axis
    raise call.refused(f"the shape {shape}, in which rows have no axis of their own")


def _shape_argument(call: _Call) -> list[int]:
    shape = call.argument(1)
    assert isinstance(shape, Bounded)
    return integers([shape], 0)


def _whole_shape(a: Sliced, count: int) -> tuple[int, ...]:
    shape = list(a.value.value.shape)
    shape[a.axis] = count
    return tuple(shape)


def _with_axes(call: _Call) -> tuple[Bounded, int]:
    """Unsqueeze: new axes of one."""
    a = call.sliced()
    dimensions = a.value.value.ndim + len(_axes(call))
    new = sorted(axis % dimensions for axis in _axes(call))
    kept = [axis for axis in range(dimensions) if axis not in new]
    return a.value.moved(lambda array: np.expand_dims(array, tuple(new))), kept[a.axis]


def _without_axes(call: _Call) -> tuple[Bounded, int]:
    """Squeeze: axes of one fewer, the rows' own not among them; without a list, all that the whole has."""
    a = call.sliced()
    whole = _whole_shape(a, call.count)
    gone = {axis % len(whole) for axis in _axes(call)} or {
        axis for axis, size in enumerate(whole) if size == 1
    }
    if a.axis in gone:
        raise call.refused("the axis of the rows")
    axis = a.axis - sum(one < a.axis for one in gone)
    return a.value.moved(lambda array: array.squeeze(tuple(sorted(gone)))), axis


def _axes(call: _Call) -> list[int]:
    given = call.argument(1)
    return integers([given], 0) if isinstance(given, Bounded) else list(call.node.get("axes") or ())


def _shape_of(call: _Call) -> tuple[Bounded, None]:
    """The whole's shape."""
    shape = _whole_shape(call.sliced(), call.count)
    start, end = call.node.get("start", 0), call.node.get("end")
    return Bounded(np.array(shape[start:end], np.int64)), None


def _parted(call: _Call) -> tuple[Sequence[Value], int]:
    """Split and Slice along other axes than that of the rows."""
    a = call.sliced()
    if call.node.get("axis", 0) % a.value.value.ndim == a.axis:
        raise call.refused("its axis along the rows")
    return _others(call, a.value), a.axis


_ELEMENTWISE = (
    "Abs", "Add", "And", "Cast", "CastLike", "Ceil", "Clip", "Cos", "Div", "Elu", "Equal", "Erf", "Exp", "Floor", "Gelu",
    "Greater", "GreaterOrEqual", "HardSigmoid", "HardSwish", "Identity", "IsInf", "IsNaN", "LeakyRelu", "Less",
    "LessOrEqual", "Log", "Max", "Min", "Mish", "Mul", "Neg", "Not", "Or", "Pow", "PRelu", "Reciprocal", "Relu", "Round",
    "Sigmoid", "Sign", "Sin", "Softplus", "Softsign", "Sqrt", "Sub", "Sum", "Tanh", "Where", "com.microsoft.BiasGelu",
    "com.microsoft.FastGelu", "com.microsoft.Gelu", "com.microsoft.QuickGelu",
)  # fmt: skip
_RULES: dict[str, Rule] = {
    **dict.fromkeys(_ELEMENTWISE, _elementwise),
    **dict.fromkeys(("LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization"), _along_features),
    **dict.fromkeys(("com.microsoft.SkipLayerNormalization", "com.microsoft.SkipSimplifiedLayerNormalization"), _elementwise),
    **dict.fromkeys(("MatMul", "com.microsoft.FusedMatMul"), _product),
    "Transpose": _transposed,
    "Reshape": _reshaped,
    "Unsqueeze": _with_axes,
    "Squeeze": _without_axes,
    "Shape": _shape_of,
    "Split": _parted,
}  # fmt: skip
