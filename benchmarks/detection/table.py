"""The table of the contest: alarms on correct runs, faults caught, and where a peer leads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tabulate import tabulate

SIDED_95 = 0.05
NOTE = (
    "A pair is a mutant and a case; it is manifest if the fault changes the exact outputs by more than u|o| in the root "
    "mean square; > pool and > 4 pool are those whose effect exceeds the worst error of four correct implementations on "
    "the same inputs, and four times that. 'alarms' are correct runs that were called wrong, with the one-sided 95 % "
    "limit of their rate. 1 + 1e-7 on a scale is below float32's resolution, and not counted."
)


@dataclass(frozen=True)
class Score:
    """What one judge came to.

    Attributes:
        runs, alarms: correct runs that it judged, and those that it called wrong.
        no_judgement: runs that it refused.
        killed: manifest pairs that it called wrong, by strength.
        killed_by_fault: the same by the fault's label.
        seconds: a judgement.
        by_arithmetic: (alarms, runs) of the correct runs in each arithmetic.
    """

    name: str
    runs: int
    alarms: int
    no_judgement: int
    killed: Mapping[str, int]
    killed_by_fault: Mapping[str, int]
    seconds: float
    by_arithmetic: Mapping[str, tuple[int, int]] = field(default_factory=dict)


def upper_limit(alarms: int, runs: int) -> float:
    """Return the one-sided 95 % limit of a rate of which `alarms` of `runs` were seen (Clopper and Pearson).

    For no alarm it is 1 - 0.05^(1/runs), about 3 / runs; else it is found by bisection of the binomial's tail.
    """
    if runs == 0 or alarms >= runs:
        return 1.0
    low, high = alarms / runs, 1.0
    for _ in range(60):
        rate = (low + high) / 2
        tail, term = 0.0, (1 - rate) ** runs
        for count in range(alarms + 1):
            tail += term
            term *= (runs - count) / (count + 1) * rate / (1 - rate)
        low, high = (rate, high) if tail > SIDED_95 else (low, rate)
    return high


def write(
    scores: Sequence[Score],
    pairs: Mapping[str, int],
    pairs_by_fault: Mapping[str, int],
    correct: Mapping[str, int],
    alarms: Sequence[str],
) -> str:
    """Return the table as Markdown."""
    ours, *others = scores
    parts = [
        "# Detection beside the peers",
        _table(scores, pairs, pairs_by_fault),
        NOTE,
        "## Alarms by arithmetic",
        _by_arithmetic(scores),
        "## Correct runs",
        _counts(correct),
        "## False alarms of onnx-attest",
        "\n".join(f"- {alarm}" for alarm in alarms) or "None.",
        "## Faults",
        _faults(scores, pairs_by_fault),
        "## Where a peer leads",
        "\n".join(_leads(ours, others, pairs_by_fault)) or "On no single fault.",
    ]
    return "\n\n".join(parts) + "\n"


def _table(scores: Sequence[Score], pairs: Mapping[str, int], pairs_by_fault: Mapping[str, int]) -> str:
    head = (
        "judge",
        "correct runs",
        "alarms",
        "95 % limit",
        "faults",
        "pairs > u",
        "> pool",
        "> 4 pool",
        "refused",
        "ms each",
    )
    rows = [
        (
            score.name,
            str(score.runs),
            str(score.alarms),
            f"{100 * upper_limit(score.alarms, score.runs):.2g} %" if score.runs else "n/a",
            f"{sum(bool(score.killed_by_fault.get(label)) for label in pairs_by_fault)}/{len(pairs_by_fault)}",
            *(_share(score.killed.get(grade, 0), pairs.get(grade, 0)) for grade in ("u", "pool", "strong")),
            str(score.no_judgement),
            f"{1000 * score.seconds:.1f}",
        )
        for score in scores
    ]
    return tabulate([head, *rows], headers="firstrow", tablefmt="github", disable_numparse=True)


def _by_arithmetic(scores: Sequence[Score]) -> str:
    names = list(dict.fromkeys(name for score in scores for name in score.by_arithmetic))
    rows = [
        (score.name, *("/".join(map(str, score.by_arithmetic.get(name, ("-", "-")))) for name in names))
        for score in scores
    ]
    return tabulate([("judge", *names), *rows], headers="firstrow", tablefmt="github", disable_numparse=True)


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} % ({part}/{whole})" if whole else "n/a"


def _counts(correct: Mapping[str, int]) -> str:
    rows = [(*key.rsplit(" ", 1), str(count)) for key, count in sorted(correct.items())]
    return tabulate(
        [("implementation", "arithmetic", "runs"), *rows],
        headers="firstrow",
        tablefmt="github",
        disable_numparse=True,
    )


def _faults(scores: Sequence[Score], pairs_by_fault: Mapping[str, int]) -> str:
    head = ("fault", "manifest", *(score.name for score in scores))
    rows = [
        (label, str(count), *(str(score.killed_by_fault.get(label, 0)) for score in scores))
        for label, count in pairs_by_fault.items()
    ]
    return tabulate([head, *rows], headers="firstrow", tablefmt="github", disable_numparse=True)


def _leads(ours: Score, others: Sequence[Score], pairs_by_fault: Mapping[str, int]) -> Iterator[str]:
    for label, count in pairs_by_fault.items():
        own = ours.killed_by_fault.get(label, 0)
        ahead = [
            f"{o.name} {o.killed_by_fault[label]}" for o in others if o.killed_by_fault.get(label, 0) > own
        ]
        if ahead:
            yield f"- {label}: {own} of {count}; {', '.join(ahead)}"
