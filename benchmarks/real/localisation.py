"""Does the first bad node come out right? Faults in random nodes of real graphs, run by ONNX Runtime unoptimised.

    python benchmarks/real/localisation.py MODEL.onnx [--shape x:1,3,48,160 ...] [--faults 100] [--seed 1]

The runtime runs the mutant, the oracle holds the original; values are matched by name. A fault counts where its exact
effect on the outputs of its node, on the runtime's own inputs, exceeds the bound that they have; then the first bad
node has to be the one that was changed. Nothing may be found in the untouched graph.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from onnx_attest.export.artifact import read_artifact
from onnx_attest.verify.arithmetic import PROFILES, Arithmetic
from onnx_attest.verify.gates import ratios
from onnx_attest.verify.nodewise import walk
from onnx_attest.verify.oracle.bounded import Bounded
from onnx_attest.verify.oracle.graph import GraphOracle, constants_of, without_functions
from onnx_attest.verify.oracle.kernels import VALUES_ALONE
from onnx_attest.verify.oracle.ops.operator import Node
from onnx_attest.verify.probe import with_every_output
from onnx_attest.verify.runtimes.onnxruntime import OrtRuntime
from onnx_attest.verify.signature import read_signature

Arrays = Mapping[str, NDArray[Any]]
FP32 = PROFILES["fp32"]
RUNTIME = OrtRuntime("ort-cpu-noopt", optimise=False)


@dataclass(frozen=True)
class Mutant:
    """A graph with one fault, and the output of the node that has it."""

    model: onnx.ModelProto
    fault: str
    output: str


def main() -> None:
    """Inject, run, and print a line a class of faults."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--shape", nargs="*", default=[], help="name:2,3,48 for inputs whose axes are open")
    parser.add_argument("--faults", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    rng = np.random.default_rng(asked.seed)
    artifact = read_artifact(asked.model)
    signature = read_signature(artifact)
    model = without_functions(signature.model)
    inputs = feed(signature, dict(shape.split(":") for shape in asked.shape), rng)
    oracle = GraphOracle(model)
    values = run(artifact, model, inputs)
    untouched = walk(oracle, inputs, values, FP32)
    print(
        f"{asked.model.name}: {len(untouched.seen)} values, {len(untouched.bad)} bad in the untouched graph, "
        f"{len(untouched.missing)} nodes without an exact result"
    )
    right: Counter[str] = Counter()
    counted: Counter[str] = Counter()
    tried: Counter[str] = Counter()
    for mutant in mutants(model, values, asked.faults, rng):
        tried[mutant.fault] += 1
        try:
            changed = run(artifact, mutant.model, inputs)
        except Exception as error:  # noqa: BLE001 - a mutant that does not run is none
            print(f"  refused {mutant.fault} at {mutant.output}: {str(error)[:100]}", file=sys.stderr)
            tried[mutant.fault] -= 1
            continue
        kept = {name: changed[name] for name in values if name in changed}
        if not exceeds(oracle, GraphOracle(mutant.model), inputs, kept, mutant.output):
            continue
        counted[mutant.fault] += 1
        bad = walk(oracle, inputs, kept, FP32).bad
        if bad and bad[0].output == mutant.output:
            right[mutant.fault] += 1
        else:
            where = f"{bad[0].node} ({bad[0].operator})" if bad else "none"
            print(f"  wrong: {mutant.fault} at {mutant.output}, first bad node {where}")
    for fault in tried:
        print(
            f"  {fault}: {right[fault]} of {counted[fault]} beyond their bound right, {tried[fault]} injected"
        )
    print(f"  all: {right.total()} of {counted.total()} right, {tried.total()} injected")


def feed(signature: Any, shapes: Mapping[str, str], rng: np.random.Generator) -> dict[str, NDArray[Any]]:
    """Return inputs of the given shapes, fixed ones where the file says so."""
    inputs = {}
    for spec in signature.contract.inputs:
        axes = [int(n) for n in shapes[spec.name].split(",")] if spec.name in shapes else spec.axes
        dtype = signature.dtypes[spec.name]
        shape = [axis if isinstance(axis, int) else signature.contract.traced[axis] for axis in axes]
        numbers = (
            rng.standard_normal(shape)
            if spec.dtype == "float"
            else rng.integers(spec.least, spec.below, shape)
        )
        inputs[spec.name] = np.asarray(numbers, dtype)
    return inputs


def run(artifact: Any, model: onnx.ModelProto, inputs: Arrays) -> dict[str, NDArray[Any]]:
    """Return all values of a graph as ONNX Runtime has them without optimisations."""
    values = RUNTIME.open(artifact, model=with_every_output(model)).run(inputs)
    return {name: value for name, value in values.items() if value.dtype != object}


def exceeds(original: GraphOracle, mutant: GraphOracle, inputs: Arrays, values: Arrays, output: str) -> bool:
    """Whether the exact effect of a fault on its node's output is beyond the bound, on the runtime's own inputs."""
    right = seen_at(original, inputs, values, output, FP32)
    wrong = seen_at(mutant, inputs, values, output, replace(FP32, kernel=VALUES_ALONE))
    if right is None or wrong is None or right.value.shape != wrong.value.shape:
        return right is not None and wrong is not None
    # Twice: the runtime's own rounding of the mutant may go the other way.
    return bool(ratios(np.asarray(wrong.value), right).max(initial=0.0) > 2)


def seen_at(
    oracle: GraphOracle, inputs: Arrays, values: Arrays, output: str, arithmetic: Arithmetic
) -> Bounded | None:
    """Return what an oracle has for one value, where every other one is the runtime's."""
    found: list[Bounded] = []

    def look(node: Node, name: str, value: Bounded) -> None:
        if name == output:
            found.append(value)

    oracle.evaluate(
        inputs, arithmetic, observed=values, on_observed=look, on_missing=lambda node, reason: None
    )
    return found[0] if found else None


def mutants(model: onnx.ModelProto, values: Arrays, count: int, rng: np.random.Generator) -> Iterator[Mutant]:
    """Yield mutants of classes in turn, each at a random node that can have it."""
    sites = {name: list(find(model, values)) for name, find in CLASSES.items()}
    classes = [name for name, found in sites.items() if found]
    for number in range(count):
        name = classes[number % len(classes)]
        index, change = sites[name][rng.integers(len(sites[name]))]
        changed = onnx.ModelProto()
        changed.CopyFrom(model)
        output = model.graph.node[index].output[0]
        change(changed, changed.graph.node[index])
        yield Mutant(changed, name, output)


Change = Callable[[onnx.ModelProto, onnx.NodeProto], None]
Sites = Iterator[tuple[int, Change]]
_WEIGHTED = ("MatMul", "Conv", "Gemm", "Mul", "Add", "Sub", "Div", "ConvTranspose")
_WITH_AXIS = ("Softmax", "ReduceMean", "Concat", "LayerNormalization")


def scaled_weights(model: onnx.ModelProto, values: Arrays) -> Sites:
    """A weight times 1 + 1e-3."""
    constants = constants_of(model)
    for index, node in enumerate(model.graph.node):
        for place, name in enumerate(node.input):
            known = constants.get(name)
            if node.op_type in _WEIGHTED and known is not None and known.dtype == np.float32 and known.any():
                yield index, replacing(place, known * np.float32(1 + 1e-3))


def replacing(place: int, array: NDArray[Any]) -> Change:
    """Return the change that gives a node another constant; others that use the old one keep it."""

    def change(model: onnx.ModelProto, node: onnx.NodeProto) -> None:
        name = f"{node.output[0]}_changed_{place}"
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(array), name))
        node.input[place] = name

    return change


def other_axes(model: onnx.ModelProto, values: Arrays) -> Sites:
    """A softmax over the axis before, a mean over another axis of the same size where there is one."""
    for index, node in enumerate(model.graph.node):
        shape = values[node.input[0]].shape if node.input and node.input[0] in values else ()
        if node.op_type == "Softmax" and len(shape) > 1:
            axis = next((a.i for a in node.attribute if a.name == "axis"), -1) % len(shape)
            yield index, with_attribute("axis", (axis - 1) % len(shape))


def with_attribute(name: str, value: Any) -> Change:
    """Return the change of one attribute."""

    def change(model: onnx.ModelProto, node: onnx.NodeProto) -> None:
        kept = [attribute for attribute in node.attribute if attribute.name != name]
        del node.attribute[:]
        node.attribute.extend([*kept, onnx.helper.make_attribute(name, value)])

    return change


def other_epsilons(model: onnx.ModelProto, values: Arrays) -> Sites:
    """An epsilon a hundred times as large: of a normalisation, or the constant that is added to a variance."""
    constants = constants_of(model)
    for index, node in enumerate(model.graph.node):
        if node.op_type in ("LayerNormalization", "BatchNormalization", "InstanceNormalization"):
            given = next((a.f for a in node.attribute if a.name == "epsilon"), 1e-5)
            yield index, with_attribute("epsilon", given * 100)
        if node.op_type == "Add":
            for place, name in enumerate(node.input):
                known = constants.get(name)
                if known is not None and known.size == 1 and 0 < float(known.reshape(-1)[0]) < 1e-3:
                    yield index, replacing(place, np.asarray(known * 100, known.dtype))


def casts(model: onnx.ModelProto, values: Arrays) -> Sites:
    """A value cast through float16."""
    for index, node in enumerate(model.graph.node):
        output = values.get(node.output[0]) if node.output else None
        if output is None or output.dtype != np.float32 or node.op_type in ("Constant", "Identity"):
            continue
        if np.abs(output).max(initial=0.0) < float(np.finfo(np.float16).max):
            yield index, through_half


def through_half(model: onnx.ModelProto, node: onnx.NodeProto) -> None:
    """Give a node's output another name, and the name to the same cast through float16."""
    name = node.output[0]
    node.output[0] = f"{name}_full"
    place = next(
        i for i, other in enumerate(model.graph.node) if other.output and other.output[0] == f"{name}_full"
    )
    short = onnx.helper.make_node("Cast", [f"{name}_full"], [f"{name}_short"], to=onnx.TensorProto.FLOAT16)
    back = onnx.helper.make_node("Cast", [f"{name}_short"], [name], to=onnx.TensorProto.FLOAT)
    model.graph.node.insert(place + 1, back)
    model.graph.node.insert(place + 1, short)


def dropped_biases(model: onnx.ModelProto, values: Arrays) -> Sites:
    """A bias left out: the third input of a product, or an added constant."""
    constants = constants_of(model)
    for index, node in enumerate(model.graph.node):
        if node.op_type in ("Conv", "Gemm", "ConvTranspose") and len(node.input) > 2 and node.input[2]:
            yield index, without_third
        known = constants.get(node.input[1]) if node.op_type == "Add" else None
        if known is not None and known.dtype == np.float32 and known.size > 1:
            yield index, replacing(1, np.zeros_like(known))


def without_third(model: onnx.ModelProto, node: onnx.NodeProto) -> None:
    """Leave the third input out."""
    del node.input[2:]


CLASSES: dict[str, Callable[[onnx.ModelProto, Arrays], Sites]] = {
    "weight times 1 + 1e-3": scaled_weights,
    "another axis": other_axes,
    "epsilon times 100": other_epsilons,
    "cast through float16": casts,
    "bias dropped": dropped_biases,
}


if __name__ == "__main__":
    main()
