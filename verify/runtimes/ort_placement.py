"""Where the nodes of an ONNX Runtime session run: asked of the session, and a fallback told from shape arithmetic."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onnx_attest.verify.runtimes.base import FallbackError, Placement
from onnx_attest.verify.runtimes.model_file import ModelFile

if TYPE_CHECKING:
    import onnxruntime as ort

_COPIES = ("MemcpyToHost", "MemcpyFromHost")


def placement_of(session: ort.InferenceSession, requested: str, model: Callable[[], ModelFile]) -> Placement:
    """Return where a session runs; `model` is asked for only if some nodes run on another provider."""
    nodes: Counter[str] = Counter()
    elsewhere: list[tuple[str, str]] = []
    # The query is missing before ORT 1.24; then the nodes stay unknown, and the report says so.
    if hasattr(session, "get_provider_graph_assignment_info"):
        for subgraph in session.get_provider_graph_assignment_info():
            held = subgraph.get_nodes()
            nodes[subgraph.ep_name] += len(held)
            if subgraph.ep_name != requested:
                elsewhere += [(node.op_type, node.name) for node in held]
    # Where all of them do, it is refused as it is.
    fallen = floating(elsewhere, model()) if elsewhere and nodes[requested] else ()
    return Placement((requested,), tuple(session.get_providers()), dict(+nodes), fallen=fallen)


def floating(nodes: Iterable[tuple[str, str]], model: ModelFile) -> tuple[str, ...]:
    """Return those nodes, (operator, name), that are not known to compute integers and booleans only.

    ONNX Runtime places arithmetic on shapes on the CPU beside any provider, and rightly so. A node that it made itself
    is not in the file, and counts as floating.
    """
    short = model.nodes_without_floats()
    return tuple(f"{operator} {name}".strip() for operator, name in nodes if (operator, name) not in short)


def refuse_fallback(placement: Placement, requested: str) -> None:
    """Do nothing if something runs on the provider.

    Raises:
        FallbackError: ORT gives a CPU session without an exception when a provider fails to start, and one that lists a
            provider which runs no node.
    """
    if requested not in placement.used:
        raise FallbackError(f"asked for {requested}, the session runs on {', '.join(placement.used)} instead")
    if placement.nodes_by_provider and not placement.nodes_by_provider.get(requested):
        listed = ", ".join(f"{count} on {name}" for name, count in placement.nodes_by_provider.items())
        raise FallbackError(f"{requested} is listed by the session and runs none of its nodes: {listed}")


def with_copies(placement: Placement, rewrite: Callable[[Path], Path]) -> Placement:
    """Return the placement with the number of copies between devices that ORT put into the graph.

    Args:
        placement: of a session on a device with memory of its own.
        rewrite: writes the graph that ORT made into a folder, and returns where: copies are nodes of that.
    """
    try:
        with tempfile.TemporaryDirectory(prefix="onnx-attest-") as folder:
            found = str(copies_in(rewrite(Path(folder))))
    except Exception as error:  # noqa: BLE001 - it is a number beside others; why it is not known is said
        found = f"unknown: {' '.join(str(error).split())}"
    return replace(placement, details={**placement.details, "memcpy_nodes": found})


def copies_in(path: Path) -> int:
    """Return how many nodes of a graph, those of its subgraphs included, copy from one device to another."""
    import onnx

    return _copies(onnx.load(path, load_external_data=False).graph)


def _copies(graph: Any) -> int:
    inside = (attribute.g for node in graph.node for attribute in node.attribute if attribute.HasField("g"))
    return sum(node.op_type in _COPIES for node in graph.node) + sum(_copies(one) for one in inside)
