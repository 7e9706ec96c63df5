"""Each softmax of a file on a runtime: where it breaks as its logits grow, by formula and by running it.

A softmax is run as a graph of its own, by the same runtime with the same options; see `cut.py`. One that subtracts its
maximum is asked for one profile of logits, one that does not for all three.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnx_attest.export.artifact import Artifact
from onnx_attest.verify.arithmetic import Arithmetic
from onnx_attest.verify.cell import Stage, Subject, describe
from onnx_attest.verify.finder.found import Found, Softmax
from onnx_attest.verify.findings import Finding, finding
from onnx_attest.verify.headroom.cut import Cut, UncutError, cut_out, rows_of
from onnx_attest.verify.headroom.given import given_logits, without_hidden
from onnx_attest.verify.headroom.kept import kept_in
from onnx_attest.verify.headroom.predicted import Break, unshifted_break
from onnx_attest.verify.headroom.search import first_break
from onnx_attest.verify.oracle.attention import row_limit
from onnx_attest.verify.records import CaseRecord, HeadroomRecord, Profile, finite
from onnx_attest.verify.runtimes.base import ProcessDiedError, Session, Tensors

Floats = NDArray[np.float64]
Seen = tuple[HeadroomRecord, tuple[Finding, ...]]
TOLERANCE = 0.01
"""Between prediction and measurement; a logit stored in bfloat16 alone is off by 0.4 %."""
_MOST = 32
"""Rows of the given logits that are run at each end: those that overflow first, and those that flush first."""
LONGEST = 1024
"""Along any axis of the case: the logits of all softmaxes are held at once, in float64."""
_MILD_ROWS, _MILD_SEED = 64, 7
_ROUNDINGS = 2
"""An attention sums a row twice: for the quotient, and in the product with V = 1."""
_ELSEWHERE = "it stands in a function, or in the body of another node"
_NEVER = Break(math.inf, math.inf, math.inf, math.inf, "")


@dataclass(frozen=True)
class Measured:
    """Where logits of a profile break a softmax, and where they would by formula.

    Attributes:
        kept: dtype of the exponentials, as seen.
        predicted: as a factor on the logits.
        factor: as measured, None if nothing up to `tried` breaks it.
        logit: the largest of the row that broke.
        tried: the largest logit that was given.
    """

    kept: str
    predicted: Break
    factor: float | None
    logit: float | None
    tried: float
    top: float

    @property
    def foreseen(self) -> float | None:
        """The predicted factor, None if nothing that the softmax can be given reaches it."""
        return self.predicted.factor if self.predicted.factor <= self.top else None

    @property
    def agrees(self) -> bool:
        """Whether both say the same, within 1 %."""
        if self.factor is None or self.foreseen is None:
            return self.factor is self.foreseen
        return self.predicted.agrees(self.factor, TOLERANCE)

    @property
    def is_early(self) -> bool:
        """Whether it breaks before the formula says."""
        return self.factor is not None and not self.agrees and self.factor < self.predicted.factor


class CutSession:
    """A softmax of its own on a runtime: whether rows of logits give weights that sum to one."""

    def __init__(self, cut: Cut, session: Session, arithmetic: Arithmetic, *, shifted: bool) -> None:
        """Take a session of the cut's model; the arithmetic says how far from one a sum may round."""
        self._cut, self._session, self._arithmetic, self._shifted = cut, session, arithmetic, shifted

    def broken(self, logits: Floats) -> NDArray[np.bool_]:
        """Return which rows of logits (rows, keys) give something else than a distribution, (rows,)."""
        outputs = self._run(logits)
        with np.errstate(all="ignore"):
            sums = self._cut.sums(outputs)
            limit = _ROUNDINGS * row_limit(logits.shape[-1], self._arithmetic)
            if self._cut.logarithm and not self._shifted:
                # Two numbers as large as the logits are subtracted: what both were rounded by is a factor of the weight.
                limit = (
                    limit + 2 * self._arithmetic.u * np.abs(np.where(np.isfinite(logits), logits, 0)).max()
                )
            expected = self._cut.expected(logits)[: len(sums)]
            return np.asarray(~(np.abs(sums - expected) <= limit))

    def kept(self, keys: int) -> str:
        """Return the format of the exponentials, seen from weights of mild logits."""
        if self._cut.weights is None:
            return ""
        logits = np.random.default_rng(_MILD_SEED).standard_normal((_MILD_ROWS, keys))
        stored = logits.astype(self._cut.dtype).astype(np.float64)
        weights = self._cut.weights(self._run(stored))
        exponentials = np.exp(stored * self._nats)
        exact = exponentials / exponentials.sum(-1, keepdims=True)
        return kept_in(weights, [exact[: len(weights)]])

    def measure(self, logits: Floats) -> Measured:
        """Return where a factor on the logits (rows, keys) breaks a row, up to the largest number they can be."""
        shown = np.abs(logits[np.isfinite(logits)])
        top = self._cut.largest / float(shown.max()) if shown.max(initial=0.0) > 0 else 1.0
        kept = self.kept(logits.shape[-1])
        predicted = _NEVER if self._shifted else self._predicted(logits, kept)
        found = first_break(lambda factor: not self.broken(factor * logits).any(), top)
        logit = None
        if found.factor is not None:
            rows = self.broken(found.factor * logits)
            logit = found.factor * float(logits[: len(rows)][rows].max()) if rows.any() else None
        return Measured(kept, predicted, found.factor, logit, found.tried * float(logits.max()), top)

    def _predicted(self, logits: Floats, kept: str) -> Break:
        softmax, nats = self._cut.softmax, self._nats
        found = unshifted_break(logits * nats, kept, least=softmax.added + softmax.floor)
        return replace(found, logit=found.logit / nats)

    @property
    def _nats(self) -> float:
        """What a logit is of the exponent of e."""
        return math.log(self._cut.softmax.base)

    def _run(self, logits: Floats) -> Tensors:
        return self._session.run(self._cut.feed(logits))


@dataclass(frozen=True, eq=False)
class _Task:
    """One softmax, what cuts it out, and the logits that it is given, (rows, keys); `reason` why there is none."""

    softmax: Softmax
    cut: Cut | None = None
    given: Floats = field(default_factory=lambda: np.zeros((0, 0)))
    reason: str = ""

    @property
    def top(self) -> float | None:
        """The largest given logit."""
        return finite(float(self.given.max())) if self.given.size else None

    def profiles(self) -> Iterator[tuple[Profile, Floats]]:
        """Yield the logits to be scaled, by profile."""
        keys = self.given.shape[-1]
        yield "one large", np.eye(1, keys)
        if not self.softmax.shifted:
            yield "all equal", np.ones((1, keys))
            yield "given", _extremes(self.given)


def _extremes(rows: Floats) -> Floats:
    """Return the rows with the largest sums of exponentials, which overflow first, and those with the smallest."""
    if len(rows) <= 2 * _MOST:
        return rows
    top = rows.max(-1, keepdims=True)
    order = (top[:, 0] + np.log(np.exp(rows - top).sum(-1))).argsort(kind="stable")
    return np.asarray(rows[np.concatenate([order[:_MOST], order[-_MOST:]])])


class Headroom:
    """The softmaxes of one artifact, to be tried on one runtime after another."""

    def __init__(
        self, artifact: Artifact, subject: Subject, found: Found, case: CaseRecord, inputs: Tensors
    ) -> None:
        """Cut each out; the case says how many keys it has, and what its logits are."""
        self._artifact, self._subject, self._case = artifact, subject, case
        own = [one for one in found.softmaxes if one.scope is found.scopes[0]]
        logits: Mapping[str, Floats] | str = {}
        if own:
            logits = given_logits(subject.expected.graph(), own, inputs)
        self._tasks = [self._task(one, logits) for one in own]
        self._tasks += [
            _Task(one, reason=_ELSEWHERE) for one in found.softmaxes if one.scope is not found.scopes[0]
        ]

    def _task(self, softmax: Softmax, logits: Mapping[str, Floats] | str) -> _Task:
        if isinstance(logits, str):
            return _Task(softmax, reason=logits)
        if softmax.weights not in logits:
            called = bool(self._subject.signature.model.functions)
            return _Task(softmax, reason=_ELSEWHERE if called else "the oracle does not show its logits")
        values = logits[softmax.weights]
        try:
            cut = cut_out(self._subject.signature.model, softmax, values.ndim)
            rows = rows_of(softmax, values)
        except UncutError as error:
            return _Task(softmax, reason=str(error))
        rows = without_hidden(rows, cut.dtype)
        if not rows.size:
            return _Task(softmax, reason="no row of the case has a key")
        return _Task(softmax, cut, rows)

    def on(self, stage: Stage, threads: int | None) -> Iterator[Seen]:
        """Yield where each softmax breaks on a runtime; equal cuts are opened once.

        A runtime that takes its process along ends here: the softmax that it died over is errored.
        """
        opened: dict[bytes, CutSession] = {}
        known: dict[tuple[Any, ...], Measured] = {}
        for task in self._tasks:
            if task.cut is None:
                yield self._unseen(stage, task, task.reason), ()
                continue
            try:
                session = opened.get(task.cut.model) or self._open(stage, task.cut, task.softmax, threads)
                opened[task.cut.model] = session
                for profile, logits in task.profiles():
                    key = (task.cut.model, logits.shape, logits.tobytes())
                    if key not in known:
                        known[key] = session.measure(logits)
                    yield self._judged(stage, task, profile, known[key])
            except ProcessDiedError as error:
                item = (finding("OA309", f"the softmax of {task.softmax.node} alone: {error}"),)
                yield self._unseen(stage, task, str(error), died=True), item
                return
            except Exception as error:  # noqa: BLE001 - the whole file was judged; that its part does not run is said
                yield self._unseen(stage, task, f"alone it does not run: {describe(error)}"), ()

    def _open(self, stage: Stage, cut: Cut, softmax: Softmax, threads: int | None) -> CutSession:
        session = stage.runtime.open(self._artifact, model=cut.model, threads=threads)
        return CutSession(cut, session, stage.arithmetic, shifted=softmax.shifted)

    def _judged(self, stage: Stage, task: _Task, profile: Profile, seen: Measured) -> Seen:
        headroom = _headroom(task, profile, seen)
        item = _finding(task, profile, seen, headroom)
        items = () if item is None else (item,)
        failed = item is not None and item.severity == "error"
        record = HeadroomRecord(
            **self._common(stage, task),
            verdict="failed" if failed else "passed",
            reason=item.message if item is not None and failed else "",
            profile=profile,
            keys=task.given.shape[-1],
            kept=seen.kept,
            predicted_logit=None if seen.foreseen is None else finite(seen.predicted.logit),
            broke_at_logit=finite(seen.logit),
            tried_to_logit=finite(seen.tried),
            headroom_log2=finite(headroom),
            agrees=seen.agrees,
            findings=tuple(one.code for one in items),
        )
        return record, items

    def _unseen(self, stage: Stage, task: _Task, reason: str, *, died: bool = False) -> HeadroomRecord:
        codes = ("OA309",) if died else ()
        return HeadroomRecord(
            **self._common(stage, task),
            verdict="errored" if died else "skipped",
            reason=reason,
            findings=codes,
        )

    def _common(self, stage: Stage, task: _Task) -> dict[str, Any]:
        return {
            **self._subject.identity.fields(),
            "runtime": stage.name,
            "case": self._case,
            "softmax": task.softmax.node,
            "form": task.softmax.form,
            "shifted": task.softmax.shifted,
            "given_largest_logit": task.top,
        }


def _headroom(task: _Task, profile: Profile, seen: Measured) -> float | None:
    """Return log2 of how far the given logits are from the break."""
    if seen.factor is None:
        return None
    if profile == "given":
        return math.log2(seen.factor) if seen.factor > 0 else -math.inf
    if seen.logit is None or task.top is None or min(seen.logit, task.top) <= 0:
        return None
    return math.log2(seen.logit / task.top)


def _finding(task: _Task, profile: Profile, seen: Measured, headroom: float | None) -> Finding | None:
    node, logits = task.softmax.node, _LOGITS[profile]
    foreseen = None if seen.foreseen is None else f"{seen.predicted.logit:.4g}"
    kept = f"exponentials kept in {seen.kept}, {task.given.shape[-1]} keys"
    if seen.factor is None:
        if foreseen is None:
            return None
        text = f"{node}, {logits}: not up to {seen.tried:.4g}, where {kept} break at {foreseen}"
        return finding("OA410", text, node=node)
    at = f"{node}, {logits}: it breaks at a logit of {seen.logit or 0.0:.4g}"
    if profile == "given" and seen.factor <= 1:
        return finding("OA408", f"{at}, and the given data has {task.top or 0.0:.4g}; {kept}", node=node)
    if seen.is_early:
        return finding("OA408", f"{at}; {kept} break at {foreseen or 'none'}", node=node)
    if not seen.agrees:
        return finding("OA410", f"{at}, where {kept} break at {foreseen}", node=node)
    return finding("OA409", f"{at} ({kept}){_to_go(task, headroom)}", node=node)


def _to_go(task: _Task, headroom: float | None) -> str:
    if headroom is None:
        return ""
    if headroom <= 0:
        return f"; the given data has {task.top or 0.0:.4g}, though not in such a row"
    return f"; the given data has {headroom:.3g} powers of two to go"


_LOGITS = {"one large": "one large logit", "all equal": "equal logits", "given": "the case's logits scaled"}


def worth_telling(seen: Sequence[Seen]) -> Iterator[tuple[HeadroomRecord, Finding]]:
    """Yield one finding a softmax and code: of the profile with the least headroom."""
    least: dict[tuple[str, str], tuple[HeadroomRecord, Finding]] = {}
    for record, items in seen:
        for item in items:
            key = (record.softmax, item.code)
            if key not in least or _far(record) < _far(least[key][0]):
                least[key] = record, item
    yield from least.values()


def _far(record: HeadroomRecord) -> float:
    return math.inf if record.headroom_log2 is None else record.headroom_log2
