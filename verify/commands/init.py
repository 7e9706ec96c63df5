"""`onnx-attest init`: a commented configuration to begin with."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from onnx_attest.errors import UsageError
from onnx_attest.verify import console


def init(
    pyproject: Annotated[
        bool, typer.Option("--pyproject", help="Append [tool.onnx-attest] to pyproject.toml instead.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Replace an onnx-attest.toml that is there already.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")] = False,
) -> None:
    """Write a commented onnx-attest.toml: every setting, what it means and what holds without it."""
    name = _append() if pyproject else _write(force=force)
    if json:
        console.show_json({"written": name})
    else:
        console.show(f"Every setting stands in {name}, commented out; none is changed yet.")


def _write(*, force: bool) -> str:
    from onnx_attest.verify.configuration.reading import OWN_FILE, PROJECT_FILE, TOOL
    from onnx_attest.verify.configuration.text import template

    if not force and _has_table(Path(PROJECT_FILE)):
        raise UsageError(
            f"{PROJECT_FILE} has [tool.{TOOL}], which {OWN_FILE} would hide: edit it there, or give --force"
        )
    try:
        with Path(OWN_FILE).open("w" if force else "x", encoding="utf-8") as file:
            file.write(template(in_project=False))
    except FileExistsError as error:
        raise UsageError(f"{OWN_FILE} is there already; edit it, or replace it with --force") from error
    except OSError as error:
        raise UsageError(
            f"cannot write {OWN_FILE}: {error.strerror}; go to a folder that can be written"
        ) from error
    return OWN_FILE


def _append() -> str:
    from onnx_attest.verify.configuration.reading import OWN_FILE, PROJECT_FILE, TOOL
    from onnx_attest.verify.configuration.text import template

    path = Path(PROJECT_FILE)
    if Path(OWN_FILE).exists():
        raise UsageError(f"{OWN_FILE} is there, and goes before {PROJECT_FILE}: edit or remove it first")
    if _has_table(path):  # --force does not touch it: the file is the user's own, not ours to replace
        raise UsageError(f"{PROJECT_FILE} has [tool.{TOOL}] already; edit it there")
    try:
        with path.open("r+", encoding="utf-8") as file:
            text = file.read()
            file.write(("" if not text or text.endswith("\n") else "\n") + "\n" * bool(text))
            file.write(template(in_project=True))
    except OSError as error:
        raise UsageError(
            f"cannot append to {PROJECT_FILE}: {error.strerror}; leave out --pyproject for an {OWN_FILE}"
        ) from error
    return PROJECT_FILE


def _has_table(path: Path) -> bool:
    from onnx_attest.verify.configuration.reading import TOOL, parsed

    tool = (parsed(path, "; repair it first") or {}).get("tool", {})
    return isinstance(tool, dict) and TOOL in tool
