"""How verdicts add up, and which exit code they give (DESIGN.md section 3 and 5)."""

from __future__ import annotations

from collections.abc import Iterable

from onnx_attest.verify.records import Verdict

_WORST_FIRST: tuple[Verdict, ...] = ("failed", "errored", "inconclusive", "passed")
VERIFIED, FAILED, USAGE, NOT_PROVEN = 0, 1, 2, 3


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """Return the verdict of a whole from those of its parts.

    Failed before errored before inconclusive before passed; parts that were skipped prove nothing,
    and where nothing else is there the whole is inconclusive.
    """
    present = set(verdicts)
    return next((verdict for verdict in _WORST_FIRST if verdict in present), "inconclusive")


def exit_code(verdict: Verdict, *, required_absent: bool = False) -> int:
    """Return 0 verified, 1 failed or errored, 3 nothing proven or a required runtime absent."""
    if verdict in ("failed", "errored"):
        return FAILED
    return VERIFIED if verdict == "passed" and not required_absent else NOT_PROVEN
