"""A session in another process; opened again there if that one has died in the meantime."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from onnx_attest.verify.runtimes.base import Placement, ProcessDiedError, Tensors
from onnx_attest.verify.workers.host import Request, RuntimeProcess

_DEATHS_IN_A_ROW = 2


class IsolatedSession:
    """An artifact made ready in another process.

    What dies as it is opened again, or twice in a row, is not tried again: each time may take as long as a hang is given.
    """

    def __init__(self, process: RuntimeProcess, opening: Request, copy: Path | None = None) -> None:
        """Open it.

        Args:
            process: where.
            opening: how.
            copy: the model that is opened instead of the artifact's, removed with the session.
        """
        self._process, self._deaths, self._given_up = process, 0, ""
        try:
            opened = process.ask(opening)
        except BaseException:
            _remove(copy)
            raise
        self._generation = process.generation
        # The request may have been sent before, under another number.
        self._number: int = opened["session"]
        self._opening = replace(opening, key="", arguments={**opening.arguments, "session": self._number})
        self.placement = Placement(**opened["placement"])
        self._methods = frozenset(opened["methods"])
        weakref.finalize(self, _let_go, process, self._number, copy)

    def run(self, inputs: Mapping[str, NDArray[Any]]) -> Tensors:
        """Return the outputs by name.

        Raises:
            ProcessDiedError: the process died of it, or of earlier calls and is not tried again.
            RaisedError: whatever the runtime raised.
        """
        outputs: Tensors = self._call("run", dict(inputs))
        return outputs

    def __getattr__(self, name: str) -> Callable[..., Any]:
        # What only some runtimes have, `attention_weights` for example.
        if name.startswith("_") or name not in self._methods:
            raise AttributeError(f"the session has no {name!r}")
        return lambda *arguments: self._call(name, *arguments)

    def _call(self, method: str, *arguments: Any) -> Any:
        if self._given_up:
            raise ProcessDiedError(self._given_up)
        opening = self._generation != self._process.generation or not self._process.runs
        try:
            if opening:
                self._process.ask(self._opening)
                self._generation, opening = self._process.generation, False
            call = {"session": self._number, "method": method, "arguments": arguments}
            answer = self._process.ask(Request("call", "it ran", call))
        except ProcessDiedError as death:
            self._deaths += 1
            if opening or self._deaths == _DEATHS_IN_A_ROW:
                why = "while it opened the file again" if opening else "twice in a row"
                self._given_up = f"not tried again, since it died {why}: {death}"
            raise
        self._deaths = 0
        return answer


def _let_go(process: RuntimeProcess, session: int, copy: Path | None) -> None:
    process.forget(session)
    _remove(copy)


def _remove(copy: Path | None) -> None:
    if copy is not None:
        copy.unlink(missing_ok=True)
