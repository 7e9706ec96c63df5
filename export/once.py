"""Steps of torch's exporter that it takes anew for each file, taken once: two thirds of what a further opset costs.

Both are private to torch, and so are their places. Where a version of torch has them elsewhere, exports take as long as
they do.
"""

from __future__ import annotations

import contextlib
import inspect
import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

_TABLES: dict[Any, Any] = {}
_PREPARED: weakref.WeakKeyDictionary[Any, dict[frozenset[Any], Any]] = weakref.WeakKeyDictionary()


@contextlib.contextmanager
def steps_taken_once() -> Iterator[None]:
    """Keep the exporter's tables of translations, and what it has made of a captured program, for later files."""
    with _tables_built_once(), _programs_decomposed_once():
        yield


@contextlib.contextmanager
def _tables_built_once() -> Iterator[None]:
    """Keep the table of translations of each opset."""
    try:
        from torch.onnx._internal.exporter._registration import ONNXRegistry

        original, build = vars(ONNXRegistry)["from_torchlib"], ONNXRegistry.from_torchlib
    except (ImportError, AttributeError, KeyError):
        yield
        return

    def kept(*arguments: Any, **options: Any) -> Any:
        key = (arguments, tuple(sorted(options.items())))
        if key not in _TABLES:
            _TABLES[key] = build(*arguments, **options)
        return _TABLES[key]

    ONNXRegistry.from_torchlib = staticmethod(kept)
    try:
        yield
    finally:
        ONNXRegistry.from_torchlib = original


@contextlib.contextmanager
def _programs_decomposed_once() -> Iterator[None]:
    """Keep what becomes of a captured program before it is translated.

    The exporter decomposes every operator that it has no translation for. A program that was decomposed with more
    translations than are asked for, and has none of those in it, has never met one: it is what fewer would give.
    """
    try:
        from torch.onnx._internal.exporter import _core, _decomp

        prepare = _core._prepare_exported_program_for_export
        translated = _decomp.get_onnx_implemented_overloads
    except (ImportError, AttributeError):
        yield
        return
    if list(inspect.signature(prepare).parameters) != ["exported_program", "registry"]:
        yield
        return
    _core._prepare_exported_program_for_export = _remembering(prepare, translated)
    try:
        yield
    finally:
        _core._prepare_exported_program_for_export = prepare


def _remembering(prepare: Callable[..., Any], translated: Callable[[Any], Any]) -> Callable[..., Any]:
    def prepared(exported_program: torch.export.ExportedProgram, *, registry: Any) -> Any:
        asked = frozenset(translated(registry))
        largest = max(_TABLES.values(), key=lambda table: len(translated(table)), default=registry)
        done = _PREPARED.setdefault(exported_program, {})
        for table in (largest, registry):
            kept = frozenset(translated(table))
            if kept not in done and asked <= kept:
                done[kept] = prepare(exported_program, registry=table)
            for more, ready in done.items():
                if asked <= more and not (more - asked) & _operators(ready):
                    return ready
        raise AssertionError("what was prepared with the asked table itself is always right")

    return prepared


def _operators(program: torch.export.ExportedProgram) -> frozenset[Any]:
    graphs = [getattr(module, "graph", None) for module in program.graph_module.modules()]
    return frozenset(
        node.target
        for graph in graphs
        if graph is not None
        for node in graph.nodes
        if node.op == "call_function"
    )
