"""The settings as texts made of their table: the file that `onnx-attest init` writes, and docs/configuration.md's tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from onnx_attest.verify.configuration.keys import KEYS, RUNTIME_KEYS, RUNTIMES, Key
from onnx_attest.verify.configuration.reading import TOOL

_HEAD = """Settings of onnx-attest (docs/configuration.md). Options of the command line win over them.
Each line with a key is an example: take "# " away to use it."""
_OWN_RUNTIME = "mine"


def template(*, in_project: bool) -> str:
    """Return a configuration in which every key stands, commented out; nothing in it changes anything.

    Args:
        in_project: for a `pyproject.toml`, under its table.
    """
    prefix = f"tool.{TOOL}." if in_project else ""
    lines = [*_commented(_HEAD.splitlines())]
    if in_project:
        lines.append(f"[tool.{TOOL}]")
    lines += _explained(KEYS)
    lines += ["", *_commented(["A runtime of your own; the name of one that there is changes that one."])]
    lines += _commented([f"[{prefix}{RUNTIMES}.{_OWN_RUNTIME}]"])
    lines += _explained(RUNTIME_KEYS)
    return "\n".join(lines) + "\n"


def _explained(keys: Iterable[Key]) -> Iterator[str]:
    for key in keys:
        commands = f" Taken by {', '.join(key.commands)}." if key.commands else ""
        yield ""
        yield from _commented([f"{key.meaning} By default: {key.default}.{commands}".replace("`", "")])
        yield from _commented([f"{key.name} = {key.example}"])


def _commented(lines: Iterable[str]) -> Iterator[str]:
    return (f"# {line}" for line in lines)


def markdown() -> str:
    """Return the tables of all keys, as docs/configuration.md has them."""
    settings = [
        f"| `{key.name}` | {key.meaning} | {key.kind.wanted} | {key.default} | {', '.join(key.commands)} |"
        for key in KEYS
    ]
    runtimes = [
        f"| `{key.name}` | {key.meaning} | {key.kind.wanted} | {key.default} |" for key in RUNTIME_KEYS
    ]
    return "\n".join(
        (
            "| key | meaning | value | by default | taken by |",
            "|---|---|---|---|---|",
            *settings,
            "",
            f"In a table `{RUNTIMES}.NAME`:",
            "",
            "| key | meaning | value | by default |",
            "|---|---|---|---|",
            *runtimes,
            "",
        )
    )
