"""The border to the terminal: results on stdout, progress and errors on stderr, one line an error."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from onnx_attest.verify import guard

if TYPE_CHECKING:
    from onnx_attest.verify.records import AnyRecord

PROGRAM = "onnx-attest"
PIPE_CLOSED = 141
"""What a shell reports of a program whose reader went away (128 + SIGPIPE): no verdict."""


# What moves the cursor, colours or renames a terminal, or turns the direction of what follows; and halves of characters,
# which no stream takes. Names in files and records may hold all of it. The form is that of JSON, whose texts stay what they
# are.
_UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def visible(text: str) -> str:
    """Return a text in which what a terminal would act upon is spelt out; ends of lines and tabs stay."""
    return _UNSEEN.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def show(text: str) -> None:
    """Write a result, at once: a reader that has gone, or a full disk, is noticed here and not at the exit."""
    _write(visible(text))


def _write(text: str) -> None:
    if sys.stdout is None:  # started with stdout closed: nobody asked for the text
        return
    encoding = sys.stdout.encoding or "utf-8"
    text = text.encode(encoding, "backslashreplace").decode(encoding)
    try:
        sys.stdout.write(text if text.endswith("\n") else text + "\n")
        sys.stdout.flush()
    except BrokenPipeError:  # `onnx-attest explain | head -1`: not an error, and nothing more to say
        _drop_stdout()
        raise SystemExit(PIPE_CLOSED) from None
    except OSError as error:
        _drop_stdout()
        fail(f"cannot write the result: {error.strerror}; write it elsewhere", 2)


def _drop_stdout() -> None:
    """Send what is still buffered to nowhere, or the interpreter would fail on it once more while it exits."""
    with contextlib.suppress(OSError, ValueError):  # ValueError: a stdout without a descriptor, in a test
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def show_run(records: Sequence[AnyRecord], *after: str, is_written: bool) -> None:
    """Write what a run came to, and what else there is to say after it: laid out on a terminal, summary.md elsewhere.

    Args:
        records: of the run.
        after: what else there is to say.
        is_written: whether there are files of the run.
    """
    from onnx_attest.verify.report.summary import summary
    from onnx_attest.verify.report.terminal import terminal

    screen = _screen()
    if screen is None:
        text = visible(summary(records, is_written=is_written))
    else:
        text = terminal(
            records, screen[0], colours=screen[1], is_written=is_written
        )  # its own colours stay, and it shows no others
    _write("\n".join(filter(None, (text, *map(visible, after)))))


def _screen() -> tuple[int, bool] | None:
    """Return the columns of the terminal and whether it is to have colours, None if stdout is none that can lay out."""
    from onnx_attest.verify.report.marks import SHAPES

    if sys.stdout is None or not sys.stdout.isatty() or os.environ.get("TERM") == "dumb":
        return None
    try:
        "".join(SHAPES.values()).encode(sys.stdout.encoding)
    except UnicodeEncodeError:
        return None
    from rich.console import Console

    console = Console(file=sys.stdout)  # knows NO_COLOR, and what a terminal of Windows can do
    return console.width, not console.no_color and console.color_system not in (None, "windows")


def show_json(value: Any) -> None:
    """Write a result as one JSON object."""
    show(json_text(value))


def json_text(value: Any) -> str:
    """Return a value as JSON; NaN and infinity, which JSON has not, become null."""
    import msgspec

    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()


def write(file: Path, text: str) -> None:
    """Write a result to a file.

    Raises:
        UsageError: it cannot be written.
    """
    from onnx_attest.errors import UsageError

    try:
        file.write_text(text if text.endswith("\n") else text + "\n", encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write {file}: {error.strerror}; choose another file with -o") from error


def note(message: str) -> None:
    """Say what was done besides the result, on stderr."""
    if sys.stderr is not None:
        with contextlib.suppress(OSError):
            sys.stderr.write(f"{visible(message)}\n")


def fail(message: str, code: int) -> NoReturn:
    """Say in one line what is wrong, and exit."""
    if sys.stderr is not None:
        with contextlib.suppress(OSError):  # the exit code still says it
            sys.stderr.write(f"{PROGRAM}: error: {visible(' '.join(message.split()))}\n")
    raise SystemExit(code)


def verdict_object(records: Sequence[AnyRecord]) -> dict[str, Any]:
    """Return what `--json` prints: verdict, exit code, cells and findings with the records' own fields."""
    import msgspec

    from onnx_attest.verify.records import (
        CellRecord,
        FindingRecord,
        HeadroomRecord,
        RelationRecord,
        RunRecord,
    )

    run = next(record for record in records if isinstance(record, RunRecord))
    return {
        "verdict": run.verdict,
        "exit_code": run.exit_code,
        "reason": run.reason,
        "cells": [msgspec.to_builtins(record) for record in records if isinstance(record, CellRecord)],
        "relations": [
            msgspec.to_builtins(record) for record in records if isinstance(record, RelationRecord)
        ],
        "headroom": [msgspec.to_builtins(record) for record in records if isinstance(record, HeadroomRecord)],
        "findings": [msgspec.to_builtins(record) for record in records if isinstance(record, FindingRecord)],
    }


def spread_lists(arguments: Sequence[str], options: Sequence[str]) -> list[str]:
    """Return the arguments with `--opt a b` written as `--opt a --opt b`.

    Polygraphy's users give several shapes after one flag; the parser takes one value a flag. A value ends the list
    if it starts with a dash, or does not look like `name:[...]`.
    """
    spread: list[str] = []
    current = ""
    for argument in arguments:
        if argument.startswith("-"):
            current = argument if argument in options else ""
            spread.append(argument)
        elif current and spread[-1] != current and ":[" in argument:
            spread += [current, argument]
        else:
            if spread and spread[-1] != current:
                current = ""
            spread.append(argument)
    return spread


@contextlib.contextmanager
def progress(total: int | None = None) -> Iterator[Callable[[str], None]]:
    """Give a function that says what is going on; a bar on a terminal, silence elsewhere.

    What a user's module prints meanwhile goes to stderr: stdout holds the result alone.
    """
    with contextlib.redirect_stdout(sys.stderr):
        if sys.stderr is None or not sys.stderr.isatty():
            yield _told
        else:
            yield from _bar(total)


def _told(step: str) -> None:
    guard.doing(step, times=guard.STEPS)


def _bar(total: int | None) -> Iterator[Callable[[str], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("starting", total=total)

        def step(text: str) -> None:
            _told(text)
            bar.update(task, advance=1, description=text)

        yield step
