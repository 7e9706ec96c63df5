"""What a comparison comes to: changes, each with a direction and whether it counts, and what was compared."""

from __future__ import annotations

from typing import Literal

import msgspec

from onnx_attest.verify.verdicts import FAILED, NOT_PROVEN, VERIFIED

Kind = Literal[
    "export", "verdict", "error", "stability", "headroom", "relation", "claim", "finding", "latency"
]
Direction = Literal["worse", "better", "other"]


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is other than before.

    Attributes:
        kind: what it is about.
        direction: `other` where neither is better.
        counts: whether it is a regression: the exit code is 1 then.
        model, variant, opset, dtype, runtime, case: where; "" or None where it is about more than one.
        quantity: what was compared, `effective_bits` for example.
        before, after: as words or numbers; None where there was none.
        amount: by how much, in the unit that `quantity` has: bits, or a ratio of times.
        records: how many pairs of records it was seen in.
        message: all of it in a sentence.
    """

    kind: Kind
    direction: Direction
    counts: bool
    model: str = ""
    variant: str = ""
    opset: int | None = None
    dtype: str = ""
    runtime: str = ""
    case: str = ""
    quantity: str
    before: str | float | None = None
    after: str | float | None = None
    amount: float | None = None
    records: int = 1
    message: str = ""

    @property
    def where(self) -> str:
        """Model, variant, opset, dtype, runtime and case, as far as they are known."""
        parts = (self.model, self.variant, "" if self.opset is None else str(self.opset), self.dtype)
        about = " ".join(filter(None, parts))
        at = " ".join(filter(None, (f"on {self.runtime}" if self.runtime else "", self.case)))
        return " ".join(filter(None, (about, at))) or "the run"


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """An earlier run and a later one.

    Attributes:
        versions: what has another version, or another value, in the two runs: before and after, None where it is not.
        compared: pairs of records of each kind.
        same_inputs: pairs of cells with the same file and the same inputs, bit by bit.
        changes: what became worse or better; those that count first.
        appeared, vanished: what only one of the runs has verified, each with how much of it.
        not_compared: what both have, and why it was not held against each other.
    """

    versions: dict[str, tuple[str | None, str | None]]
    compared: dict[str, int]
    same_inputs: int
    changes: tuple[Change, ...]
    appeared: dict[str, str]
    vanished: dict[str, str]
    not_compared: dict[str, str]

    @property
    def regressions(self) -> tuple[Change, ...]:
        """The changes that count."""
        return tuple(change for change in self.changes if change.counts)

    @property
    def verdict(self) -> Literal["passed", "failed", "inconclusive"]:
        """Failed if something got worse that counts, inconclusive if the runs have nothing in common.

        Where cells ran and none of them is in both, the rest proves nothing of them.
        """
        if self.regressions:
            return "failed"
        lonely = (self.appeared or self.vanished) and not self.compared.get("cells")
        return "passed" if any(self.compared.values()) and not lonely else "inconclusive"

    @property
    def exit_code(self) -> int:
        """Of the command: 1 for a regression, 3 if nothing could be compared."""
        return {"failed": FAILED, "passed": VERIFIED, "inconclusive": NOT_PROVEN}[self.verdict]
