"""A graph as the finder sees it: who gives and who reads a value, its type and sizes, and numbers that are constant."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnx_attest.verify.finder.messages import MOST, inferred, inlined
from onnx_attest.verify.finder.shapes import complete

FLOAT, FLOAT16, DOUBLE, BFLOAT16 = 1, 10, 11, 16
"""Element types, as onnx.TensorProto numbers them."""
NAMES = {FLOAT: "float32", FLOAT16: "float16", DOUBLE: "float64", BFLOAT16: "bfloat16"}
_READABLE = {
    1: "f4",
    2: "u1",
    3: "i1",
    4: "u2",
    5: "i2",
    6: "i4",
    7: "i8",
    9: "?",
    10: "f2",
    11: "f8",
    12: "u4",
    13: "u8",
    16: "u2",
}
_FIELDS = {1: "float_data", 7: "int64_data", 11: "double_data", 13: "uint64_data"}
MOVES = (
    "Reshape",
    "Transpose",
    "Identity",
    "Cast",
    "CastLike",
    "Unsqueeze",
    "Squeeze",
    "Expand",
    "Flatten",
    "QuantizeLinear",
    "DequantizeLinear",
)
"""They hand the numbers of their first input on, in other places or another format."""
_FOLDED: Mapping[str, Callable[..., Any]] = {
    **dict.fromkeys(("Cast", "Identity", "Unsqueeze", "Squeeze", "Reshape", "CastLike", "Expand"), lambda one: one),
    "Sqrt": np.sqrt, "Reciprocal": np.reciprocal, "Neg": np.negative, "Mul": np.multiply, "Div": np.divide,
    "Add": np.add, "Sub": np.subtract, "Pow": np.power,
}  # fmt: skip
_CARRYING = ("Unsqueeze", "Squeeze", "Reshape", "CastLike", "Expand")
"""Of those, the ones whose further inputs say where the numbers go."""
NEAR = 200
"""Nodes that a mask is made of, at most."""
_INTEGERS = (6, 7)
_DEEPEST = 16
"""Steps from a number to the constants that it is made of."""
_MOST_AXES = 64
"""Of an array of NumPy."""
_EXTERNAL = 1

Axis = int | str | None
Shape = tuple[Axis, ...]


@dataclass(eq=False)
class Scope:
    """One graph, or the body of a node or a function, with what it sees of those around it.

    Attributes:
        nodes: in order.
        makers: the node that gives each value.
        tensors: initializers and the values of Constant nodes, by name.
        shapes, kinds: of values, as far as they are known.
        inputs: that somebody feeds: of the whole graph only.
        opset: of the standard operators.
    """

    nodes: list[Any]
    makers: dict[str, Any]
    tensors: dict[str, Any]
    shapes: dict[str, Shape]
    kinds: dict[str, int]
    inputs: frozenset[str]
    outputs: frozenset[str]
    opset: int
    _read: dict[str, NDArray[Any] | None] = field(default_factory=dict)
    _known: dict[str, float | None] = field(default_factory=dict)
    _fed: dict[str, tuple[str, ...]] = field(default_factory=dict)

    @cached_property
    def readers(self) -> Mapping[str, list[Any]]:
        """The nodes that read each value."""
        found: dict[str, list[Any]] = {}
        for node in self.nodes:
            for name in dict.fromkeys(node.input):
                found.setdefault(name, []).append(node)
        return found

    def maker(self, name: str) -> Any | None:
        """Return the node that gives a value, None for inputs and constants."""
        return self.makers.get(name)

    def constant(self, name: str) -> NDArray[Any] | None:
        """Return a constant's numbers, None if the value is none, or a large one."""
        if name not in self._read:
            self._read[name] = self._constant(name)
        return self._read[name]

    def _constant(self, name: str) -> NDArray[Any] | None:
        if name in self.tensors:
            return _numbers(self.tensors[name])
        shape = self.shape(name)
        if shape is not None and any(size != 1 for size in shape):
            return None
        value = self._folded(name, _DEEPEST)
        return None if value is None else np.asarray(value)

    def _folded(self, name: str, steps: int) -> float | None:
        """Return the one number that all elements of a value are, where constants, or sizes that are numbers, make it."""
        if name not in self._known:
            self._known[name] = self._fold(name, steps)
        return self._known[name]

    def _fold(self, name: str, steps: int) -> float | None:
        if name in self.tensors:
            tensor = self.constant(name)
            return float(tensor.reshape(-1)[0]) if tensor is not None and tensor.size == 1 else None
        node = self.makers.get(name)
        if node is None or not steps or not node.input or node.domain not in ("", "ai.onnx"):
            return None
        if node.op_type == "ConstantOfShape":
            return _filler(node)
        if node.op_type == "Gather":
            size = self.size_named(name)
            return float(size) if isinstance(size, int) else None
        if node.op_type not in _FOLDED:
            return None
        numbers = []
        for one in node.input[:1] if node.op_type in _CARRYING else node.input:
            number = self._folded(one, steps - 1)
            if number is None:
                return None
            numbers.append(np.float64(number))
        with np.errstate(all="ignore"):
            value = float(_FOLDED[node.op_type](*numbers))
        return float(math.trunc(value)) if self.kind(name) in _INTEGERS and math.isfinite(value) else value

    def size_named(self, name: str) -> Axis:
        """Return the size that a value is, taken from another value's shape: a number or the name of an axis."""
        node = self.makers.get(name)
        for _ in range(_DEEPEST):
            if node is None or node.op_type not in ("Cast", "Unsqueeze", "Squeeze", "Reshape", "Identity"):
                break
            node = self.makers.get(node.input[0])
        if node is None or node.op_type not in ("Gather", "Shape"):
            return None
        if node.op_type == "Shape":
            first, last = attribute(node, "start") or 0, attribute(node, "end")
            shape = self.shape(node.input[0])
            part = None if shape is None else shape[first:last]
            return part[0] if part is not None and len(part) == 1 else None
        of, index = self.makers.get(node.input[0]), self.tensors.get(node.input[1])
        where = None if index is None else _numbers(index)
        if of is None or of.op_type != "Shape" or of.attribute or where is None or where.size != 1:
            return None
        shape, axis = self.shape(of.input[0]), int(where.reshape(-1)[0])
        return shape[axis] if shape is not None and -len(shape) <= axis < len(shape) else None

    def number(self, name: str) -> float | None:
        """Return the one number that all elements of a value are, None if they are others or not constant."""
        value = self.constant(name)
        if value is not None:
            return float(value.reshape(-1)[0]) if value.size == 1 else None
        return None if name in self.tensors else self._folded(name, _DEEPEST)

    def is_constant(self, name: str) -> bool:
        """Whether a value is a constant, or one that was moved, cast, or stored as codes."""
        node = self.makers.get(name)
        while node is not None and name not in self.tensors and node.op_type in MOVES:
            name = node.input[0]
            node = self.makers.get(name)
        return name in self.tensors or self.constant(name) is not None

    def shape(self, name: str) -> Shape | None:
        """Return the sizes of a value, None if not even their number is known."""
        if name in self.tensors:
            return tuple(self.tensors[name].dims)
        return self.shapes.get(name)

    def rank(self, name: str) -> int | None:
        """Return how many axes a value has."""
        shape = self.shape(name)
        return None if shape is None else len(shape)

    def kind(self, name: str) -> int:
        """Return the element type of a value, 0 if it is not known."""
        return int(self.tensors[name].data_type) if name in self.tensors else self.kinds.get(name, 0)

    def ancestors(self, name: str, *, most: int = 0, past: tuple[str, ...] = ()) -> Iterator[Any]:
        """Yield the nodes that a value depends on, each once, the nearest first.

        Args:
            name: of the value.
            most: of the nodes, all if it is 0: what makes a mask stands near, and deep graphs are long.
            past: operators that are not looked past.
        """
        seen: set[int] = set()
        waiting = deque([name])
        while waiting and not 0 < most <= len(seen):
            node = self.makers.get(waiting.popleft())
            if node is not None and id(node) not in seen:
                seen.add(id(node))
                yield node
                if node.op_type not in past:
                    waiting += node.input

    def fed(self, name: str) -> tuple[str, ...]:
        """Return the inputs of the graph that a value depends on, by more than their sizes."""
        waiting = [name]
        while waiting:
            value = waiting[-1]
            node = self.makers.get(value)
            above = [] if node is None or node.op_type in ("Shape", "Size") else list(node.input)
            open_ = [one for one in above if one not in self._fed]
            if open_ and value not in self._fed:
                waiting += open_
                continue
            waiting.pop()
            if value not in self._fed:
                own = {value: None} if value in self.inputs else {}
                self._fed[value] = tuple(own | {one: None for up in above for one in self._fed[up]})
        return self._fed[name]

    def depends(self, name: str, on: str) -> bool:
        """Whether a value is computed from another one; only nodes behind that one's are looked at."""
        maker = self.makers.get(on)
        if maker is None:
            return on in self.fed(name)
        first = self._places.get(id(maker), -1)
        waiting, seen = [name], {""}
        while waiting:
            value = waiting.pop()
            if value == on:
                return True
            node = self.makers.get(value)
            if value in seen or node is None or self._places.get(id(node), -1) < first:
                continue
            seen.add(value)
            waiting += node.input
        return False

    @cached_property
    def _places(self) -> Mapping[int, int]:
        """The place of each node in the graph's order."""
        return {id(node): place for place, node in enumerate(self.nodes)}


def scopes_of(model: Any) -> list[Scope]:
    """Return the graph of an onnx.ModelProto, the bodies of its nodes, and those of its functions.

    Where the model has functions, the first graph is the one with them called out: an attention may be spread over
    several, and what its numbers and sizes are is known where they are called only.
    """
    model, rest = inlined(model)
    typed = inferred(model)
    opset = max((one.version for one in model.opset_import if one.domain in ("", "ai.onnx")), default=0)
    given = {tensor.name for tensor in model.graph.initializer}
    inputs = frozenset(value.name for value in model.graph.input if value.name not in given)
    whole = _scope(model.graph, typed.graph, None, inputs, opset)
    found = [whole, *_bodies(whole, typed.graph)]
    for function in rest:
        versions = [one.version for one in function.opset_import if one.domain in ("", "ai.onnx")]
        names = frozenset(function.input), frozenset(function.output)
        body = Scope([], {}, {}, {}, {}, *names, max(versions, default=opset))
        _fill(body, function.node)
        complete(body)
        found += [body, *_bodies(body, None)]
    return found


def _scope(graph: Any, typed: Any, outer: Scope | None, inputs: frozenset[str], opset: int) -> Scope:
    scope = Scope(
        [],
        dict(outer.makers) if outer else {},
        dict(outer.tensors) if outer else {},
        dict(outer.shapes) if outer else {},
        dict(outer.kinds) if outer else {},
        inputs,
        frozenset(value.name for value in graph.output),
        opset,
    )
    scope.tensors |= {tensor.name: tensor for tensor in graph.initializer}
    for value in (*typed.value_info, *typed.input, *typed.output):
        kind = value.type.tensor_type
        scope.kinds[value.name] = kind.elem_type
        if kind.HasField("shape"):
            scope.shapes[value.name] = tuple(
                axis.dim_value if axis.HasField("dim_value") else axis.dim_param or None
                for axis in kind.shape.dim
            )
    _fill(scope, graph.node)
    complete(scope)
    return scope


def _fill(scope: Scope, nodes: Any) -> None:
    for node in nodes:
        scope.nodes.append(node)
        scope.makers |= {name: node for name in node.output if name}
        if node.op_type == "Constant" and node.domain in ("", "ai.onnx"):
            scope.tensors.update((node.output[0], tensor) for tensor in _held(node))


def _held(node: Any) -> Iterator[Any]:
    """Yield the tensor that a Constant holds, in whichever of its attributes."""
    for one in node.attribute:
        if one.name == "value":
            yield one.t
        elif one.name in _PLAIN and not one.ref_attr_name:
            field, kind, many = _PLAIN[one.name]
            tensor = type(node)().attribute.add().t
            tensor.data_type = kind
            numbers = list(getattr(one, field)) if many else [getattr(one, field)]
            tensor.dims.extend([len(numbers)] if many else [])
            (tensor.float_data if kind == FLOAT else tensor.int64_data).extend(numbers)
            yield tensor


_PLAIN = {
    "value_float": ("f", FLOAT, False),
    "value_floats": ("floats", FLOAT, True),
    "value_int": ("i", 7, False),
    "value_ints": ("ints", 7, True),
}


def _bodies(outer: Scope, typed: Any) -> Iterator[Scope]:
    """Yield the graphs inside nodes; inference keeps the nodes, but for constants, and types what is inside of them."""
    twins = {} if typed is None else {name: node for node in typed.node for name in node.output if name}
    for node in outer.nodes:
        for attribute in node.attribute:
            graphs = [attribute.g] if attribute.HasField("g") else list(attribute.graphs)
            if not graphs:
                continue
            twin = next((twins[name] for name in node.output if name in twins), None)
            same = [one for one in (twin.attribute if twin is not None else ()) if one.name == attribute.name]
            inside = [] if not same else [same[0].g] if same[0].HasField("g") else list(same[0].graphs)
            for index, graph in enumerate(graphs):
                with_types = inside[index] if index < len(inside) else graph
                body = _scope(graph, with_types, outer, outer.inputs, outer.opset)
                yield body
                yield from _bodies(body, with_types)


def _filler(node: Any) -> float | None:
    """Return the number that ConstantOfShape fills a tensor with."""
    for one in node.attribute:
        if one.name == "value":
            value = _numbers(one.t)
            return float(value.reshape(-1)[0]) if value is not None and value.size == 1 else None
    return 0.0


def _numbers(tensor: Any) -> NDArray[Any] | None:
    """Return a tensor's numbers; None if there are many, they lie beside the file, or NumPy has no such type or shape."""
    size = math.prod(tensor.dims)
    if len(tensor.dims) > _MOST_AXES or min(tensor.dims, default=0) < 0:
        return None
    if size > MOST or tensor.data_type not in _READABLE or tensor.data_location == _EXTERNAL:
        return None
    dtype = np.dtype(_READABLE[tensor.data_type]).newbyteorder("<")
    if tensor.HasField("raw_data"):
        if len(tensor.raw_data) != size * dtype.itemsize:
            return None
        array = np.frombuffer(tensor.raw_data, dtype)
    else:
        array = _from_field(tensor, dtype)
        if array.size != size:
            return None
    if tensor.data_type == BFLOAT16:  # the upper half of a float32
        array = (array.astype(np.uint32) << 16).view(np.float32)
    return array.reshape(tuple(tensor.dims))


def _from_field(tensor: Any, dtype: np.dtype[Any]) -> NDArray[Any]:
    values = getattr(tensor, _FIELDS.get(tensor.data_type, "int32_data"))
    if tensor.data_type == FLOAT16:
        return np.array(values, np.uint16).view(np.float16)
    return np.array(values).astype(dtype)


def attribute(node: Any, name: str) -> Any:
    """Return an attribute's value, None if the node does not have it: numbers, text as bytes, lists of numbers."""
    for one in node.attribute:
        if one.name == name and not one.ref_attr_name:
            kinds = {1: "f", 2: "i", 3: "s", 6: "floats", 7: "ints"}
            return getattr(one, kinds[one.type]) if one.type in kinds else None
    return None


def label(node: Any) -> str:
    """Return what a person finds a node by."""
    return str(node.name or (node.output[0] if node.output else node.op_type))


def qualified(node: Any) -> str:
    """Return an operator's name with its domain, unless that is the standard one."""
    return str(node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}.{node.op_type}")
