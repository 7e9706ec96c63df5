"""What a measure of a statement gives, and the record that it becomes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from onnx_attest.verify.records import ClaimRecord, Verdict, finite


class Measured(NamedTuple):
    """Numbers, and what they say.

    Attributes:
        wrong: why they refute the statement, "" if they do not.
        note: what else there is to say.
        unclear: why they neither bear it out nor refute it, "" if they bear it out.
    """

    numbers: dict[str, float | None]
    wrong: str = ""
    note: str = ""
    unclear: str = ""

    @property
    def verdict(self) -> Verdict:
        """What the numbers come to."""
        if self.wrong:
            return "failed"
        return "inconclusive" if self.unclear else "passed"


def recorded(
    claim: int,
    runtime: str,
    measured: Measured,
    setting: str,
    series: Mapping[str, Iterable[float]] | None = None,
    **fields: Any,
) -> ClaimRecord:
    """Return the record of a measurement; `series` and `fields` as in the record.

    Series with NaN or infinity are left out: JSON has neither, and there is nothing to draw.
    """
    kept = {name: tuple(map(float, values)) for name, values in (series or {}).items()}
    whole = all(map(math.isfinite, itertools.chain.from_iterable(kept.values())))
    return ClaimRecord(
        claim=claim,
        runtime=runtime,
        verdict=measured.verdict,
        reason=measured.wrong or measured.unclear or measured.note,
        setting=setting,
        measured={name: finite(value) for name, value in measured.numbers.items()},
        series=kept if whole else {},
        **fields,
    )
