"""Mutations of ONNX files: each is named, and makes one file from a right one and a seeded source of chance.

A mutation gets the model, which it may change, and the folder that the file will stand in, for what it needs beside it. It
returns the bytes of the file. The same seed gives the same file.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import onnx
from google.protobuf.message import Message
from onnx import AttributeProto, TensorProto, helper

Mutation = Callable[[random.Random, onnx.ModelProto, Path], bytes]
MUTATIONS: dict[str, Mutation] = {}
"""By the name of what is wrong."""
INTEGERS = (
    0,
    1,
    -1,
    2,
    -2,
    7,
    64,
    100,
    2**15,
    2**31 - 1,
    2**31,
    -(2**31),
    2**33,
    2**40,
    2**62,
    2**63 - 1,
    -(2**63),
)
FLOATS = (0.0, -0.0, 1e-45, 1.0, -1.0, 1e38, -1e38, float("inf"), float("-inf"), float("nan"))
TEXTS = (
    "", "\0", "a\0b", "a\nb", "\r", "\t", "\x1b[31mred\x1b[0m", "\x1b]0;title\x07", "\x9b2J", "../../../../tmp/elsewhere", "/etc/passwd",
    "a/b", "..", ".", "-o", "--help", "%s%n", "{0.__class__}", "<script>alert(1)</script>", "]]>", "a|b", "`id`", "$(id)", "=1+1",
    "\u202egnp.exe", "\u2028", "é" * 100, "x" * 5000, "con", "a:b", "*", "[a]", "\\", '"', "'", "x", "y", "q", "w", "Constant",
)  # fmt: skip


def mutation(name: str) -> Callable[[Mutation], Mutation]:
    """Return a decorator that enters a mutation under a name."""

    def enter(function: Mutation) -> Mutation:
        assert name not in MUTATIONS, name
        MUTATIONS[name] = function
        return function

    return enter


def _nodes(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    return list(_nodes_in(model.graph)) + [node for function in model.functions for node in function.node]


def _nodes_in(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _nodes_in(attribute.g)


def _tensors(model: onnx.ModelProto) -> list[onnx.TensorProto]:
    made = [one.t for node in _nodes(model) for one in node.attribute if one.HasField("t")]
    return [*model.graph.initializer, *made]


def _tensor(rng: random.Random, model: onnx.ModelProto) -> onnx.TensorProto:
    """Return a tensor of the model, given one if it has none."""
    found = _tensors(model)
    if found:
        return rng.choice(found)
    model.graph.initializer.append(
        helper.make_tensor("given", TensorProto.FLOAT, [2, 2], [1.0, 2.0, 3.0, 4.0])
    )
    model.graph.node.append(helper.make_node("Identity", ["given"], ["given_too"]))
    return model.graph.initializer[-1]


def _values(model: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    graph = model.graph
    return [*graph.input, *graph.output, *graph.value_info]


def _done(model: onnx.ModelProto) -> bytes:
    return bytes(model.SerializeToString())


# --- the bytes ----------------------------------------------------------------------------------------------------


@mutation("truncated")
def _truncated(rng: random.Random, model: onnx.ModelProto, folder: Path) -> bytes:
    data = _done(model)
    return data[: rng.randrange(len(data))]


@mutation("bits flipped")
def _flipped(rng: random.Random, model: onnx.ModelProto, folder: Path) -> bytes:
    data = bytearray(_done(model))
    for _ in range(rng.choice((1, 1, 2, 8))):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return bytes(data)


@mutation("bytes overwritten")
def _overwritten(rng: random.Random, model: onnx.ModelProto, folder: Path) -> bytes:
    data = bytearray(_done(model))
    place = rng.randrange(len(data))
    more = rng.randbytes(rng.randrange(1, 9))
    data[place : place + len(more)] = more
    return bytes(data)


@mutation("bytes inserted or left out")
def _inserted(rng: random.Random, model: onnx.ModelProto, folder: Path) -> bytes:
    data = _done(model)
    first, last = sorted(rng.randrange(len(data)) for _ in range(2))
    if rng.random() < 0.5:
        return data[:first] + data[last:]
    return data[:first] + rng.randbytes(rng.randrange(1, 30)) + data[first:]


@mutation("a part repeated")
def _repeated(rng: random.Random, model: onnx.ModelProto, folder: Path) -> bytes:
    data = _done(model)
    first, last = sorted(rng.randrange(len(data) + 1) for _ in range(2))
    return data[:last] + data[first:last] * rng.choice((1, 2, 50)) + data[last:]


@mutation("two files in one")
def _joined(rng: random.Random, model: onnx.ModelProto, folder: Path) -> bytes:
    """Protobuf takes it for one message, whose repeated fields are those of both."""
    return _done(model) * rng.choice((2, 2, 3, 20))


@mutation("random bytes")
def _random(rng: random.Random, model: onnx.ModelProto, folder: Path) -> bytes:
    return rng.randbytes(rng.choice((1, 2, 10, 1000, 100_000)))


# --- any field ----------------------------------------------------------------------------------------------------


def _messages(message: Message) -> Iterator[Message]:
    yield message
    for field, value in message.ListFields():
        if field.message_type is not None:
            for one in value if not isinstance(value, Message) else [value]:
                yield from _messages(one)


def _odd(rng: random.Random, field: Any) -> Any:
    kinds = {
        field.CPPTYPE_STRING: lambda: rng.choice(TEXTS) if field.type == field.TYPE_STRING else rng.randbytes(rng.randrange(40)),
        field.CPPTYPE_FLOAT: lambda: rng.choice(FLOATS),
        field.CPPTYPE_DOUBLE: lambda: rng.choice(FLOATS),
        field.CPPTYPE_INT64: lambda: rng.choice(INTEGERS),
        field.CPPTYPE_UINT64: lambda: rng.choice(INTEGERS) % 2**64,
        field.CPPTYPE_INT32: lambda: rng.choice([one for one in INTEGERS if -(2**31) <= one < 2**31] + [*range(30)]),
        field.CPPTYPE_ENUM: lambda: rng.choice([one.number for one in field.enum_type.values]),
    }  # fmt: skip
    return kinds[field.cpp_type]()


def change_a_field(rng: random.Random, model: Message) -> None:
    """Change one field of one message in a model: to something odd, to nothing, to more, or to that of another one."""
    messages = list(_messages(model))
    message = rng.choice(messages)
    field = rng.choice(message.DESCRIPTOR.fields)
    value = getattr(message, field.name)
    repeated = not isinstance(value, Message | str | bytes | int | float)
    if rng.random() < 0.2:
        message.ClearField(field.name)
    elif field.message_type is not None:
        like = [one for one in messages if one.DESCRIPTOR.name == field.message_type.name]
        if not like:
            return
        given = type(like[0])()
        given.CopyFrom(rng.choice(like))
        if repeated:
            value.append(given) if rng.random() < 0.5 or not value else value[
                rng.randrange(len(value))
            ].CopyFrom(given)
        else:
            value.CopyFrom(given)
    elif repeated:
        if value and rng.random() < 0.5:
            value[rng.randrange(len(value))] = _odd(rng, field)
        else:
            value.extend(_odd(rng, field) for _ in range(rng.choice((1, 1, 2, 40))))
    else:
        setattr(message, field.name, _odd(rng, field))


@mutation("a field changed")
def _field(rng: random.Random, model: onnx.ModelProto, folder: Path) -> bytes:
    change_a_field(rng, model)
    return _done(model)


@mutation("some fields changed")
def _fields(rng: random.Random, model: onnx.ModelProto, folder: Path) -> bytes:
    for _ in range(rng.randrange(2, 9)):
        change_a_field(rng, model)
    return _done(model)


# --- the graph ----------------------------------------------------------------------------------------------------


@mutation("fields swapped")
def _swapped(rng: random.Random, model: onnx.ModelProto, folder: Path) -> bytes:
    """Two nodes, tensors or values change places in part: their names stay where they were."""
    kind = rng.choice((_nodes(model), _tensors(model), _values(model)))
    if len(kind) > 1:
        one, other = rng.sample(kind, 2)
        field = rng.choice(one.DESCRIPTOR.fields).name
        kept = type(one)()
        kept.CopyFrom(one)
        one.ClearField(field)
        one.MergeFrom(_alone(other, field))
        other.ClearField(field)
        other.MergeFrom(_alone(kept, field))
    return _done(model)


def _alone(message: Any, field: str) -> Any:
    made = type(message)()
    made.CopyFrom(message)
    for each, _ in message.ListFields():
        if each.name != field:
            made.ClearField(each.name)
    return made


@mutation("a cycle")
def _cycle(rng: random.Random, model: onnx.ModelProto, folder: Path) -> bytes:
    nodes = [node for node in model.graph.node if node.input and node.output]
    first, last = sorted((rng.randrange(len(nodes)), rng.randrange(len(nodes))))
    nodes[first].input[rng.randrange(len(nodes[first].input))] = nodes[last].output[0]
    return _done(model)


@mutation("dangling names")
def _dangling(rng: random.Random, model: onnx.ModelProto, folder: Path) -> bytes:
    nodes = _nodes(model)
    for node in rng.sample(nodes, min(len(nodes), rng.randrange(1, 3))):
        names = rng.choice((node.input, node.output))
        if names:
            names[rng.randrange(len(names))] = rng.choice(("nowhere", "", *TEXTS))
    return _done(model)


@mutation("names used twice")
def _twice(rng: random.Random, model: onnx.ModelProto, folder: Path) -> bytes:
    graph = model.graph
    named = [*graph.input, *graph.output, *graph.initializer]
    if rng.random() < 0.5:
        rng.choice(named).name = rng.choice(named).name
    else:
        node = rng.choice(list(graph.node))
        node.output[0] = rng.choice([*named[:1], *named]).name
    return _done(model)


@mutation("odd names")
def _names(rng: random.Random, model: onnx.ModelProto, folder: Path) -> bytes:
    """The same graph under other names, wherever they stand."""
    known = sorted({name for node in model.graph.node for name in (*node.input, *node.output) if name})
    other = {name: f"{rng.choice(TEXTS[1:])}{number}" for number, name in enumerate(known)}
    for node in model.graph.node:
        node.name = rng.choice(TEXTS)
        node.doc_string = rng.choice(TEXTS)
        for names in (node.input, node.output):
            for place, name in enumerate(names):
                names[place] = other.get(name, name)
    for value in (*_values(model), *model.graph.initializer):
        value.name = other.get(value.name, value.name)
    for value in _values(model):
        for axis in value.type.tensor_type.shape.dim:
            if axis.HasField("dim_param"):
                axis.dim_param = f"{rng.choice(TEXTS)}{axis.dim_param}"
    model.graph.name = model.producer_name = model.domain = rng.choice(TEXTS)
    return _done(model)


@mutation("nodes out of order")
def _order(rng: random.Random, model: onnx.ModelProto, folder: Path) -> bytes:
    nodes = list(model.graph.node)
    rng.shuffle(nodes)
    copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del model.graph.node[:]
    model.graph.node.extend(copies)
    return _done(model)


@mutation("parts left out")
def _left_out(rng: random.Random, model: onnx.ModelProto, folder: Path) -> bytes:
    graph = model.graph
    lists = [graph.node, graph.input, graph.output, graph.initializer, model.opset_import, model.functions]
    lists += [names for node in graph.node for names in (node.input, node.output, node.attribute)]
    some = [one for one in lists if len(one)]
    for names in rng.sample(some, min(len(some), rng.randrange(1, 4))):
        del names[rng.randrange(len(names)) :]
    return _done(model)


@mutation("another operator")
def _operator(rng: random.Random, model: onnx.ModelProto, folder: Path) -> bytes:
    node = rng.choice(_nodes(model))
    node.op_type = rng.choice([one.name for one in onnx.defs.get_all_schemas()] + list(TEXTS))
    if rng.random() < 0.2:
        node.domain = rng.choice(("com.microsoft", "ai.onnx.ml", "ai.onnx", "nowhere", *TEXTS))
    return _done(model)


@mutation("unknown opsets and versions")
def _opsets(rng: random.Random, model: onnx.ModelProto, folder: Path) -> bytes:
    choice = rng.randrange(4)
    if choice == 0:
        model.opset_import[0].version = rng.choice(INTEGERS)
    elif choice == 1:
        model.opset_import.add(
            domain=rng.choice(("", "ai.onnx", "com.microsoft", *TEXTS)),
            version=rng.choice((*range(30), *INTEGERS)),
        )
    elif choice == 2:
        model.opset_import[0].version = rng.randrange(1, 30)
    else:
        model.ir_version = rng.choice((*range(15), *INTEGERS))
    return _done(model)


@mutation("sizes of values")
def _sizes(rng: random.Random, model: onnx.ModelProto, folder: Path) -> bytes:
    value = rng.choice(_values(model))
    shape = value.type.tensor_type.shape
    choice = rng.randrange(4)
    if choice == 0 and shape.dim:
        rng.choice(list(shape.dim)).dim_value = rng.choice(INTEGERS)
    elif choice == 1:
        for _ in range(rng.choice((1, 3, 70))):
            shape.dim.add(dim_value=rng.choice(INTEGERS))
    elif choice == 2:
        value.type.tensor_type.ClearField("shape")
    elif shape.dim:
        rng.choice(list(shape.dim)).dim_param = rng.choice(TEXTS)
    return _done(model)


@mutation("unknown dtypes")
def _dtypes(rng: random.Random, model: onnx.ModelProto, folder: Path) -> bytes:
    number = rng.choice((0, -1, 8, 14, 15, 17, 21, 22, 23, 24, 25, 26, 27, 28, 99, 2**31 - 1, *range(1, 17)))
    if rng.random() < 0.5:
        rng.choice(_values(model)).type.tensor_type.elem_type = number
    else:
        _tensor(rng, model).data_type = number
    return _done(model)


@mutation("values that are no tensors")
def _types(rng: random.Random, model: onnx.ModelProto, folder: Path) -> bytes:
    kinds = [
        helper.make_sequence_type_proto(helper.make_tensor_type_proto(1, None)),
        helper.make_optional_type_proto(helper.make_tensor_type_proto(1, [2])),
        helper.make_map_type_proto(7, helper.make_tensor_type_proto(1, [])),
        helper.make_sparse_tensor_type_proto(1, [3]),
        onnx.TypeProto(),
        onnx.TypeProto(denotation="x"),
    ]
    nested = onnx.TypeProto()
    inner = nested
    for _ in range(40):
        inner = inner.sequence_type.elem_type
    inner.tensor_type.elem_type = 1
    rng.choice(_values(model)).type.CopyFrom(rng.choice([*kinds, nested]))
    return _done(model)


@mutation("sizes of constants that lie")
def _lies(rng: random.Random, model: onnx.ModelProto, folder: Path) -> bytes:
    tensor = _tensor(rng, model)
    choice = rng.randrange(6)
    if choice == 0:
        tensor.raw_data = rng.randbytes(rng.choice((0, 1, 3, 5, 7, 64)))
    elif choice == 1 and tensor.dims:
        tensor.dims[rng.randrange(len(tensor.dims))] = rng.choice(INTEGERS)
    elif choice == 2:
        del tensor.dims[:]
        tensor.dims.extend(
            rng.choice(
                ((2**32, 2**32), (2**31, 2**31, 4), (-1,), (-1, -4), (2**63 - 1,), (0, 2**62), (1,) * 70)
            )
        )
    elif choice == 3:
        tensor.float_data.extend([1.0] * rng.choice((1, 3, 1000)))
        tensor.int64_data.extend([1] * rng.choice((0, 1)))
    elif choice == 4:
        tensor.ClearField("float_data")
        tensor.ClearField("raw_data")
        tensor.ClearField("int64_data")
        tensor.ClearField("int32_data")
    else:
        tensor.segment.begin, tensor.segment.end = rng.choice(INTEGERS), rng.choice(INTEGERS)
    return _done(model)


@mutation("odd constants")
def _constants(rng: random.Random, model: onnx.ModelProto, folder: Path) -> bytes:
    tensor = _tensor(rng, model)
    for field in ("float_data", "int64_data", "int32_data"):
        numbers = getattr(tensor, field)
        for place in range(len(numbers)):
            if rng.random() < 0.5:
                numbers[place] = rng.choice(FLOATS if field == "float_data" else [one for one in INTEGERS if field == "int64_data" or abs(one) < 2**31])  # fmt: skip
    if tensor.raw_data:
        tensor.raw_data = rng.randbytes(len(tensor.raw_data))
    return _done(model)


@mutation("attributes")
def _attributes(rng: random.Random, model: onnx.ModelProto, folder: Path) -> bytes:
    node = rng.choice(_nodes(model))
    schemas = [one for one in onnx.defs.get_all_schemas() if one.name == node.op_type]
    names = sorted({name for schema in schemas for name in schema.attributes}) or ["axis"]
    made = AttributeProto(
        name=rng.choice([*names, "nowhere"]), type=rng.choice(AttributeProto.AttributeType.values())
    )
    made.i, made.f = rng.choice(INTEGERS), rng.choice(FLOATS)
    made.s = rng.choice(TEXTS).encode()
    made.ints.extend(rng.choice(INTEGERS) for _ in range(rng.randrange(5)))
    made.floats.extend(rng.choice(FLOATS) for _ in range(rng.randrange(5)))
    if rng.random() < 0.2:
        made.ref_attr_name = rng.choice(("by", "nowhere"))
    if rng.random() < 0.5:
        kept = [one for one in node.attribute if one.name != made.name]
        del node.attribute[:]
        node.attribute.extend(kept)
    node.attribute.append(made)
    return _done(model)


@mutation("huge results")
def _huge(rng: random.Random, model: onnx.ModelProto, folder: Path) -> bytes:
    """A small file that asks for more than any machine has."""
    size = rng.choice((2**24, 2**28, 2**31, 2**33, 2**40, 2**62))
    graph = model.graph
    graph.initializer.append(helper.make_tensor("huge_shape", TensorProto.INT64, [1], [size]))
    graph.initializer.append(helper.make_tensor("huge_number", TensorProto.INT64, [], [size]))
    graph.initializer.append(helper.make_tensor("huge_one", TensorProto.FLOAT, [1], [1.0]))
    graph.initializer.append(helper.make_tensor("huge_zero", TensorProto.INT64, [], [0]))
    graph.initializer.append(helper.make_tensor("huge_step", TensorProto.INT64, [], [1]))
    graph.initializer.append(helper.make_tensor("huge_pads", TensorProto.INT64, [2], [0, size]))
    graph.initializer.append(helper.make_tensor("huge_values", TensorProto.FLOAT, [2], [0.0, 1.0]))
    node = rng.choice(
        (
            helper.make_node("ConstantOfShape", ["huge_shape"], ["huge"]),
            helper.make_node("Expand", ["huge_one", "huge_shape"], ["huge"]),
            helper.make_node("Tile", ["huge_one", "huge_shape"], ["huge"]),
            helper.make_node("Range", ["huge_zero", "huge_number", "huge_step"], ["huge"]),
            helper.make_node("Pad", ["huge_one", "huge_pads"], ["huge"]),
            helper.make_node("OneHot", ["huge_zero", "huge_number", "huge_values"], ["huge"]),
        )
    )
    graph.node.insert(0, node)
    graph.node.append(helper.make_node("Cast", ["huge"], ["huge_float"], to=1))
    graph.node.append(helper.make_node("ReduceSum", ["huge_float"], ["huge_sum"], keepdims=0))
    graph.output.append(helper.make_tensor_value_info("huge_sum", TensorProto.FLOAT, []))
    return _done(model)


@mutation("loops without end")
def _loop(rng: random.Random, model: onnx.ModelProto, folder: Path) -> bytes:
    graph = model.graph
    body = helper.make_graph(
        [helper.make_node("Identity", ["go"], ["on"]), helper.make_node("Add", ["c", "c"], ["d"])],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("c", TensorProto.FLOAT, [1]),
        ],
        [helper.make_tensor_value_info("on", TensorProto.BOOL, []), helper.make_tensor_value_info("d", TensorProto.FLOAT, [1])],
    )  # fmt: skip
    graph.initializer.append(
        helper.make_tensor("trips", TensorProto.INT64, [], [rng.choice((2**20, 2**40, 2**63 - 1))])
    )
    graph.initializer.append(helper.make_tensor("always", TensorProto.BOOL, [], [True]))
    graph.initializer.append(helper.make_tensor("start", TensorProto.FLOAT, [1], [0.0]))
    trips = rng.choice(("trips", ""))
    graph.node.append(helper.make_node("Loop", [trips, "always", "start"], ["looped"], body=body))
    graph.output.append(helper.make_tensor_value_info("looped", TensorProto.FLOAT, [1]))
    return _done(model)


# --- functions and graphs inside graphs ---------------------------------------------------------------------------


def _function(name: str, calls: list[str], domain: str = "nest") -> onnx.FunctionProto:
    names = ["a", *(f"v{number}" for number in range(len(calls) - 1)), "b"]
    nodes = [
        helper.make_node(
            call, [names[number]], [names[number + 1]], domain="" if call in ("Identity", "Neg") else domain
        )
        for number, call in enumerate(calls)
    ]
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid(domain, 1)]
    return helper.make_function(domain, name, ["a"], ["b"], nodes, opsets)


def with_functions(model: onnx.ModelProto, functions: list[onnx.FunctionProto], first: str) -> bytes:
    """Return a model with these functions, of which it calls one."""
    model.functions.extend(functions)
    if "nest" not in [one.domain for one in model.opset_import]:
        model.opset_import.add(domain="nest", version=1)
    given = model.graph.input[0].name
    model.graph.node.append(helper.make_node(first, [given], ["nested"], domain="nest"))
    output = model.graph.output.add()
    output.CopyFrom(model.graph.input[0])
    output.name = "nested"
    return _done(model)


def nested_functions(model: onnx.ModelProto, depth: int) -> bytes:
    """Return a model that calls a function that calls a function, and so on."""
    functions = [_function(f"f{number}", [f"f{number + 1}"]) for number in range(depth - 1)]
    return with_functions(model, [*functions, _function(f"f{depth - 1}", ["Neg"])], "f0")


def doubling_functions(model: onnx.ModelProto, depth: int) -> bytes:
    """Return a model whose functions call the next one twice: written out it has 2^depth nodes."""
    functions = [_function(f"f{number}", [f"f{number + 1}"] * 2) for number in range(depth - 1)]
    return with_functions(model, [*functions, _function(f"f{depth - 1}", ["Neg"])], "f0")


def cyclic_functions(model: onnx.ModelProto, length: int) -> bytes:
    """Return a model whose functions call each other in a circle."""
    return with_functions(
        model, [_function(f"f{number}", [f"f{(number + 1) % length}"]) for number in range(length)], "f0"
    )


@mutation("nested functions")
def _nested(rng: random.Random, model: onnx.ModelProto, folder: Path) -> bytes:
    return nested_functions(model, rng.choice((2, 50, 1000, 5000, 20_000)))


@mutation("cyclic functions")
def _cyclic(rng: random.Random, model: onnx.ModelProto, folder: Path) -> bytes:
    return cyclic_functions(model, rng.choice((1, 1, 2, 3, 100)))


@mutation("functions that double")
def _doubling(rng: random.Random, model: onnx.ModelProto, folder: Path) -> bytes:
    return doubling_functions(model, rng.choice((5, 12, 16, 30, 60)))


@mutation("functions that do not fit")
def _unfit(rng: random.Random, model: onnx.ModelProto, folder: Path) -> bytes:
    function = _function("f0", ["Identity"])
    choice = rng.randrange(5)
    if choice == 0:
        del function.opset_import[:]
    elif choice == 1:
        function.input.extend(["more", rng.choice(TEXTS)])
    elif choice == 2:
        function.output.append("lost")
    elif choice == 3:
        function.attribute.extend(["a", "a"])
    else:
        function.node[0].input[0] = "nowhere"
    return with_functions(model, [function] * rng.choice((1, 2)), rng.choice(("f0", "f1")))


def nested_ifs(model: onnx.ModelProto, depth: int) -> bytes:
    """Return a model with an If in an If, and so on; written byte by byte, since protobuf refuses to write it."""
    model.graph.initializer.append(helper.make_tensor("deep_if", TensorProto.BOOL, [], [True]))
    given, output = model.graph.input[0].name, onnx.ValueInfoProto()
    output.CopyFrom(model.graph.input[0])
    output.name = "deep"

    def field(number: int, data: bytes) -> bytes:
        return _varint(number << 3 | 2) + _varint(len(data)) + data

    tail = field(12, output.SerializeToString())
    graph = field(1, helper.make_node("Neg", [given], ["deep"]).SerializeToString()) + field(2, b"g") + tail
    plain = graph
    for _ in range(depth):
        kind = _varint(20 << 3) + _varint(AttributeProto.GRAPH)
        branches = field(5, field(1, b"then_branch") + field(6, graph) + kind)
        branches += field(5, field(1, b"else_branch") + field(6, plain) + kind)
        node = field(1, b"deep_if") + field(2, b"deep") + field(4, b"If") + branches
        graph = field(1, node) + field(2, b"g") + tail
    shell = onnx.ModelProto()
    shell.CopyFrom(model)
    # A second graph of the same message is merged into the first by whoever reads it.
    return _done(shell) + field(7, graph)


def _varint(number: int) -> bytes:
    data = bytearray()
    while number > 127:
        data.append(number & 127 | 128)
        number >>= 7
    return bytes((*data, number))


@mutation("graphs inside graphs")
def _inside(rng: random.Random, model: onnx.ModelProto, folder: Path) -> bytes:
    return nested_ifs(model, rng.choice((1, 5, 20, 30, 31, 32, 33, 100, 2000)))


# --- data beside the file -----------------------------------------------------------------------------------------


def beside(model: onnx.ModelProto, tensor: onnx.TensorProto, **entries: object) -> bytes:
    """Return a model one of whose tensors lies beside it, as the entries say."""
    for field in ("raw_data", "float_data", "int32_data", "int64_data"):
        tensor.ClearField(field)
    tensor.data_location = TensorProto.EXTERNAL
    del tensor.external_data[:]
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=str(value))
    return _done(model)


@mutation("data outside of the folder")
def _outside(rng: random.Random, model: onnx.ModelProto, folder: Path) -> bytes:
    place = rng.choice(
        (
            "../secret",
            "/etc/hostname",
            "/dev/zero",
            "sub/../../secret",
            "..",
            ".",
            "",
            "/",
            "//etc/hostname",
            *TEXTS,
        )
    )
    return beside(model, _tensor(rng, model), location=place)


@mutation("data that is a link, a pipe or a device")
def _special(rng: random.Random, model: onnx.ModelProto, folder: Path) -> bytes:
    path, kind = folder / "weights.bin", rng.randrange(6)
    if kind == 0:
        path.symlink_to("/etc/hostname")
    elif kind == 1:
        path.symlink_to("/dev/zero")
    elif kind == 2:
        os.mkfifo(path)
    elif kind == 3:
        path.mkdir()
    elif kind == 4:
        path.symlink_to("weights.bin")
    else:
        path.symlink_to(folder.parent)
    location = "weights.bin/hostname" if kind == 5 else "weights.bin"
    return beside(model, _tensor(rng, model), location=location)


@mutation("places of data that lie")
def _placed(rng: random.Random, model: onnx.ModelProto, folder: Path) -> bytes:
    (folder / "weights.bin").write_bytes(rng.randbytes(rng.choice((0, 1, 16, 64, 100))))
    odd = (
        "0",
        "1",
        "4",
        "16",
        "64",
        "-1",
        "1e3",
        "x",
        "",
        "9" * 30,
        "9" * 5000,
        str(2**63),
        " 4",
        "0x10",
        "٣",
    )
    entries: dict[str, object] = {"location": "weights.bin"}
    for key in ("offset", "length", "checksum", "nowhere"):
        if rng.random() < 0.6:
            entries[key] = rng.choice(odd)
    return beside(model, _tensor(rng, model), **entries)


@mutation("sparse tensors")
def _sparse(rng: random.Random, model: onnx.ModelProto, folder: Path) -> bytes:
    values = helper.make_tensor("sparse", TensorProto.FLOAT, [2], [1.0, 2.0])
    indices = helper.make_tensor(
        "where", TensorProto.INT64, [2], [rng.choice(INTEGERS), rng.choice(INTEGERS)]
    )
    model.graph.sparse_initializer.append(
        helper.make_sparse_tensor(values, indices, [rng.choice(INTEGERS), 4])
    )
    model.graph.node.append(helper.make_node("Identity", ["sparse"], ["from_sparse"]))
    return _done(model)


def mutated(
    names: list[str], seeds: dict[str, onnx.ModelProto], seed: int, number: int, folder: Path
) -> tuple[str, bytes]:
    """Return the name of the mutation and the bytes of file `number` of a seed; what lies beside it is in the folder."""
    rng = random.Random(f"{seed}/{number}")
    name = names[number % len(names)]
    model = onnx.ModelProto()
    model.CopyFrom(seeds[rng.choice(sorted(seeds))])
    return name, MUTATIONS[name](rng, model, folder)
