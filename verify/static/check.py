"""`onnx-attest check`: what the rules say of a file, and what attention is in it. Nothing is run.

A process that does only this imports neither onnx nor a runtime: see `finder/messages.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onnx_attest.errors import UsageError
from onnx_attest.export.messages import garbled
from onnx_attest.verify import guard
from onnx_attest.verify.finder.calls import EndlessError, refuse_endless
from onnx_attest.verify.finder.find import find
from onnx_attest.verify.finder.found import Attention, Found, Softmax
from onnx_attest.verify.finder.graph import NAMES
from onnx_attest.verify.finder.messages import part
from onnx_attest.verify.findings import CODES, Finding, finding
from onnx_attest.verify.static.rules import static_findings

if TYPE_CHECKING:
    from onnx_attest.export.artifact import Artifact


@dataclass(frozen=True, eq=False)
class Checked:
    """What is in a file, and what is wrong with it."""

    path: Path
    found: Found
    findings: tuple[Finding, ...]

    @property
    def exit_code(self) -> int:
        """1 if something is wrong for sure, else 0."""
        return int(any(item.severity == "error" for item in self.findings))

    def as_object(self) -> dict[str, Any]:
        """Return it for JSON."""
        return {
            "verdict": "failed" if self.exit_code else "passed",
            "exit_code": self.exit_code,
            "file": self.path.name,
            "cells": [],
            "findings": [
                {
                    "code": item.code,
                    "severity": item.severity,
                    "blame": item.blame,
                    "node": item.node,
                    "message": item.message,
                    "next_step": item.next_step,
                }
                for item in self.findings
            ],
            "attentions": [dict(_row(one)) for one in self.found.attentions],
            "softmaxes": [dict(_softmax_row(one)) for one in self._others()],
        }

    def as_text(self, *, attention: bool) -> str:
        """Return it for a person, findings last."""
        count, rest = len(self.found.attentions), len(self._others())
        parts = [
            f"{self.path.name}: {_count(count, 'attention')}, {_count(rest, 'other softmax', 'other softmaxes')}"
        ]
        if attention:
            parts += [
                _table(rows)
                for rows in (
                    [_row(a) for a in self.found.attentions],
                    [_softmax_row(s) for s in self._others()],
                )
                if rows
            ]
        parts.append("\n".join(_lines(self.findings)) or "No rule finds anything.")
        return "\n\n".join(parts)

    def _others(self) -> list[Softmax]:
        inside = {id(one.softmax) for one in self.found.attentions}
        return [one for one in self.found.softmaxes if id(one) not in inside]


def check_file(path: Path, providers: Sequence[str] = ()) -> Checked:
    """Return what the rules find in a file.

    Args:
        path: of the file; a manifest beside it says what was asked for.
        providers: runtimes whose placement of the nodes is asked for: they open the file and run nothing.

    Raises:
        UsageError: it cannot be read, or is no ONNX file; a runtime that is not known or does not work here.
    """
    from onnx_attest.export.artifact import read_artifact
    from onnx_attest.verify.static.known import known_of

    guard.doing(f"checking {path.name}")
    artifact = read_artifact(path)
    model = _read(path)
    found = find(model)
    told = [
        *_asked(artifact),
        *static_findings(model, found=found, **known_of(artifact)),
        *_placements(artifact, providers),
    ]
    return Checked(path, found, tuple(told))


def _read(path: Path) -> Any:
    model = part("onnx_ml_pb2").ModelProto()
    try:
        model.ParseFromString(path.read_bytes())
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}") from error
    except Exception as error:  # protobuf's DecodeError, of whichever implementation
        raise UsageError(
            f"{path} is not a complete ONNX file: {error}; was it truncated, or is it another format?"
        ) from error
    if not model.HasField("graph") or not model.opset_import:
        raise UsageError(f"{path} is no ONNX file: it has no graph or no opset")
    if (name := garbled(model)) is not None:
        raise UsageError(
            f"{path} is not a complete ONNX file: the name {name!r} is not text; was it damaged?"
        )
    try:
        refuse_endless(model)
    except EndlessError as error:
        raise UsageError(f"{path} is not valid ONNX: {error}") from error
    try:
        # By path: tensors beside the file are checked as well. Its errors are of a class of the extension's own.
        part("onnx_cpp2py_export").checker.check_model_path(str(path), False, False, False)
    except Exception as error:
        raise UsageError(f"{path} is not valid ONNX: {' '.join(str(error).split())}") from error
    return model


def _asked(artifact: Artifact) -> Iterator[Finding]:
    """Yield what is not as it was asked for; only a file with a manifest can tell, and that takes the whole package."""
    if artifact.manifest is None:
        return
    from onnx_attest.verify.asked_got import compare_asked_and_got
    from onnx_attest.verify.signature import read_signature

    yield from compare_asked_and_got(artifact, read_signature(artifact))


def _placements(artifact: Artifact, names: Sequence[str]) -> Iterator[Finding]:
    if not names:
        return
    from onnx_attest.verify.runtimes.base import FallbackError, UnavailableError
    from onnx_attest.verify.runtimes.isolated import isolate, processes_of
    from onnx_attest.verify.runtimes.registry import select

    runtimes = isolate(select(tuple(names)))
    with processes_of(runtimes):
        for runtime in runtimes:
            try:
                placement = runtime.open(artifact).placement
            except FallbackError as error:
                yield finding("OA202", f"{runtime.name}: {error}")
                continue
            except UnavailableError as error:
                yield finding("OA201", f"{runtime.name}: {error}")
                continue
            except Exception as error:  # noqa: BLE001 - a runtime may raise anything; what it refuses is worth knowing
                yield finding(
                    "OA304", f"{runtime.name} does not open the file: {' '.join(str(error).split())}"
                )
                continue
            if placement.fallen:
                yield finding(
                    "OA204", f"{runtime.name} leaves to another provider: {', '.join(placement.fallen)}"
                )
            elif elsewhere := placement.elsewhere():
                yield finding("OA203", f"{runtime.name}: {elsewhere}")


def _lines(findings: Sequence[Finding]) -> Iterator[str]:
    for item in findings:
        yield f"{item.code} {item.severity}: {item.message}\n    {CODES[item.code].title}. Next: {item.next_step}"


def _row(one: Attention) -> list[tuple[str, str]]:
    cap = f", softcap {one.softcap:g}" if one.softcap else ""
    return [
        ("attention", one.node),
        ("form", one.form),
        ("dtype", NAMES.get(one.softmax.kind, "unknown")),
        ("q", _of(one, one.query)),
        ("k", _of(one, one.key)),
        ("v", _of(one, one.value)),
        ("scale", ("computed" if one.scale is None else f"{one.scale:.6g}") + cap),
        ("head size", str(one.head_size or "unknown")),
        ("axis", _axis(one.softmax)),
        ("mask", "; ".join(f"{mask.form} {mask.value}" + ("" if mask.hiding is None else f" ({mask.hiding:.3g})") for mask in one.masks) or "none"),
        ("causal", "yes" if one.causal else "no"),
        ("maximum subtracted", "yes" if one.softmax.shifted else "NO"),
    ]  # fmt: skip


def _softmax_row(one: Softmax) -> list[tuple[str, str]]:
    return [
        ("softmax", one.node),
        ("form", one.form),
        ("dtype", NAMES.get(one.kind, "unknown")),
        ("logits", one.logits),
        ("axis", _axis(one)),
        ("maximum subtracted", "yes" if one.shifted else "NO"),
    ]


def _of(one: Attention, name: str) -> str:
    shape = one.scope.shape(name)
    return (
        name
        if shape is None
        else f"{name} [{', '.join('?' if size is None else str(size) for size in shape)}]"
    )


def _axis(one: Softmax) -> str:
    if one.block is not None:
        return f"{one.block} and all behind it"
    return "unknown" if one.axis is None else str(one.axis)


def _table(rows: Sequence[Sequence[tuple[str, str]]]) -> str:
    from tabulate import tabulate

    return str(
        tabulate(
            [[value for _, value in row] for row in rows],
            [name for name, _ in rows[0]],
            tablefmt="github",
            disable_numparse=True,
        )
    )


def _count(number: int, one: str, many: str = "") -> str:
    return f"{number} {one}" if number == 1 else f"{number} {many or one + 's'}"
