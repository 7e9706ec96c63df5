"""Where a task of the main job is cut to see where its time goes: functions that are timed when somebody asks for it.

They are wrapped from outside, so that a run that nobody times has no clock in it; the oracle and the gates know none.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from onnx_attest.verify.runtimes.base import Runtime
from onnx_attest.verify.stopwatch import Stopwatch, timed
from onnx_attest.verify.work import EXPORTER, GATES, INFERENCE, ORACLE, SESSIONS, START

_VERIFY = "onnx_attest.verify"
_STAGES = {
    f"{_VERIFY}.task:_export": "export",
    f"{_VERIFY}.engine:read_signature": "reading the file",
    f"{_VERIFY}.engine:_subject": "reading the file",
    f"{_VERIFY}.engine:find": "static rules",
    f"{_VERIFY}.engine:static_findings": "static rules",
    f"{_VERIFY}.exporter:ExporterCheck.of": "exporter check",
    f"{_VERIFY}.exporter:ExporterCheck.cell": "exporter check",
    f"{_VERIFY}.exporter:ExporterCheck.about_file": "exporter check",
    f"{_VERIFY}.engine:_Verification._open": "opening",
    f"{_VERIFY}.engine:_Verification._cases": "making cases",
    f"{_VERIFY}.engine:_Verification._inputs_of": "making cases",
    f"{_VERIFY}.engine:_Verification._run_case": "cells",
    f"{_VERIFY}.engine:_Verification._look": "softmax",
    f"{_VERIFY}.engine:_Verification._in_pieces": "piece by piece",
    f"{_VERIFY}.by_node:NodeByNode.judged": "node by node",
    f"{_VERIFY}.relations:Relations.__init__": "relations",
    f"{_VERIFY}.relations:Relations.check": "relations",
    f"{_VERIFY}.engine:_Verification._audit": "relations",
    f"{_VERIFY}.engine:_Verification._headroom": "headroom",
    f"{_VERIFY}.claims.experiments:run_claims": "claims",
}
_KINDS = {
    "onnx_attest.models.entry:build_module": START,
    "onnx_attest.export.lower:capture": EXPORTER,
    "onnx_attest.export.lower:lower": EXPORTER,
    f"{_VERIFY}.runtimes.torch_eager:TorchSession.run": INFERENCE,
    f"{_VERIFY}.runtimes.torch_eager:TorchSession.run_and_listen": INFERENCE,
    f"{_VERIFY}.oracle.graph:GraphOracle.__init__": ORACLE,
    f"{_VERIFY}.oracle.graph:GraphOracle.evaluate": ORACLE,
    f"{_VERIFY}.gates:judge": GATES,
    f"{_VERIFY}.gates:judge_value": GATES,
    f"{_VERIFY}.noise:Yardstick.of": GATES,
    f"{_VERIFY}.noise:Yardstick.measure": GATES,
    f"{_VERIFY}.noise:noise_of": GATES,
}
_OF_A_RUNTIME = {"availability": START, "rewritten": SESSIONS}


class Seams:
    """Wrapped functions, until they are let go."""

    def __init__(self, watch: Stopwatch) -> None:
        """Wrap what all tasks go through."""
        self._watch = watch
        self._undo: list[Callable[[], None]] = []
        self._sessions: set[type] = set()
        for where, stage in _STAGES.items():
            self._wrap(where, partial(watch.stage, stage))
        for where, kind in _KINDS.items():
            self._wrap(where, partial(watch.kind, kind))

    def of_runtimes(self, runtimes: Iterable[Runtime]) -> None:
        """Wrap what these runtimes do as well, and what the sessions do that they open."""
        for kind in dict.fromkeys(map(type, runtimes)):
            for name, part in _OF_A_RUNTIME.items():
                if hasattr(kind, name):
                    self._set(kind, name, timed(getattr(kind, name), partial(self._watch.kind, part)))
            self._set(kind, "open", self._opening(kind.open))  # type: ignore[attr-defined]

    def let_go(self) -> None:
        """Put everything back."""
        while self._undo:
            self._undo.pop()()

    def _opening(self, function: Callable[..., Any]) -> Callable[..., Any]:
        opened = timed(function, partial(self._watch.kind, SESSIONS))

        def and_watch(*arguments: Any, **options: Any) -> Any:
            session = opened(*arguments, **options)
            self._of_session(type(session))
            return session

        return and_watch

    def _of_session(self, kind: type) -> None:
        if kind in self._sessions:
            return
        self._sessions.add(kind)
        for name in dir(kind):
            if not name.startswith("_") and callable(function := getattr(kind, name)):
                self._set(kind, name, timed(function, partial(self._watch.kind, INFERENCE)))

    def _wrap(self, where: str, part: Callable[[], Any]) -> None:
        """Wrap a function, `module:function` or `module:Class.function`, wherever our modules have it.

        Raises:
            AttributeError: there is no such function (any more).
        """
        module, _, path = where.partition(":")
        *owner, name = path.split(".")
        home = importlib.import_module(module)
        if owner:
            kind = getattr(home, owner[0])
            wrapped = timed(getattr(kind, name), part)
            static = isinstance(vars(kind).get(name), staticmethod)
            self._set(kind, name, staticmethod(wrapped) if static else wrapped)
            return
        original = getattr(home, name)
        wrapped = timed(original, part)
        for other in [one for key, one in sys.modules.items() if key.startswith("onnx_attest")]:
            if vars(other).get(name) is original:
                self._set(other, name, wrapped)

    def _set(self, owner: Any, name: str, value: Any) -> None:
        own = vars(owner).get(name)
        setattr(owner, name, value)
        put_back = partial(delattr, owner, name) if own is None else partial(setattr, owner, name, own)
        self._undo.append(put_back)
