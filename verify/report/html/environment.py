"""The machine and its software, as far as they influence a number."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from onnx_attest.verify.records import AnyRecord, ArtifactRecord, EnvironmentRecord
from onnx_attest.verify.report.formats import UNKNOWN, number, sizes
from onnx_attest.verify.report.grouping import of_kind, subject
from onnx_attest.verify.report.html.markup import Markup, joined, tag
from onnx_attest.verify.report.html.tables import filled
from onnx_attest.verify.report.tables import Column

_GIB = 2**30
Usable = tuple[str, str]


def environment(records: Sequence[AnyRecord]) -> Markup:
    """Return each environment that was recorded, and the files that were verified."""
    machines = of_kind(records, EnvironmentRecord)
    exports = of_kind(records, ArtifactRecord)
    return joined(
        list(map(_machine, machines)) or tag("p", "The environment was not recorded."),
        filled("Files", FILES, exports),
    )


def _machine(one: EnvironmentRecord) -> Markup:
    memory = UNKNOWN if one.memory_bytes is None else f"{number(one.memory_bytes / _GIB)} GiB"
    lines = {
        "onnx-attest": one.onnx_attest,
        "Python": one.python,
        "system": f"{one.system}, {one.machine}",
        "processor": f"{one.cpu or UNKNOWN}, {one.cores} cores, {' '.join(one.cpu_features) or 'features ' + UNKNOWN}",
        "memory": memory,
        "GPUs": ", ".join(one.gpus) or "none",
        "packages": _pairs(one.packages),
        "variables": _pairs(one.variables) or "none",
        "command": " ".join(one.command),
        "recorded at": one.recorded_at,
    }
    usable = filled("Runtimes", RUNTIMES, one.runtimes.items())
    return joined(definitions(lines.items()), usable)


def definitions(lines: Iterable[tuple[str, str]]) -> Markup:
    """Return names with what they are."""
    return tag("dl", (joined(tag("dt", name), tag("dd", text)) for name, text in lines), class_="facts")


def _pairs(names: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {value}" for name, value in names.items())


RUNTIMES: tuple[Column[Usable], ...] = (
    Column("runtime", "its name", lambda one: one[0]),
    Column("usable here", "or why not", lambda one: one[1] or "yes"),
)
FILES: tuple[Column[ArtifactRecord], ...] = (
    Column("model", "name of the module", lambda one: one.model),
    Column("variant", "form of the graph", lambda one: one.variant),
    Column("opset", "opset of the file", lambda one: subject(one).opset),
    Column("dtype", "floating dtype of the graph", lambda one: one.dtype),
    Column("verdict", "of the export itself", lambda one: one.verdict),
    Column("bytes", "size of the file", lambda one: number(one.size_bytes)),
    Column("arithmetic", "declared", lambda one: one.arithmetic),
    Column("empty rows", "what a row without any key is to give", lambda one: one.empty_rows),
    Column("operators", "how many of each", lambda one: sizes(one.operators)),
    Column("traced", "sizes at which the module was traced", lambda one: sizes(one.traced)),
    Column("reference", "what the file is held against", lambda one: one.reference or UNKNOWN),
    Column("sha256", "digest of the file", lambda one: one.sha256 or UNKNOWN),
    Column("reason", "why there is no file", lambda one: one.reason),
)
