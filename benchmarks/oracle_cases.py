"""The float64 oracle on ONNX's own node cases: how many of each operator's it evaluates, and whether it is right.

    python benchmarks/oracle_cases.py [OPERATOR ...] [-o reports/reference/operators.md]

An unsupported case of a covered operator counts as failed.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx

from onnx_attest.verify.node_cases import (
    NodeCase,
    Outcome,
    covered,
    exceptions,
    judge_case,
    left_out,
    node_cases,
)


def main() -> None:
    """Judge the cases and print what did not pass."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("operators", nargs="*", help="only cases with one of these")
    parser.add_argument("-o", "--output", type=Path, help="write the table here")
    asked = parser.parse_args()
    chosen = [
        case
        for case in node_cases().values()
        if not asked.operators or set(asked.operators) & set(case.operators)
    ]
    with np.errstate(all="ignore"):
        outcomes = {case.name: judge_case(case) for case in chosen if not left_out(case)}
    for outcome in outcomes.values():
        if outcome.status != "passed":
            print(f"{outcome.status:12} {outcome.case}: {outcome.reason}")
    counts = Counter(outcome.status for outcome in outcomes.values())
    print(f"{counts['passed']} of {len(outcomes)} passed; {len(chosen) - len(outcomes)} left out")
    if asked.output:
        asked.output.write_text(table(chosen, outcomes))


def table(cases: Sequence[NodeCase], outcomes: Mapping[str, Outcome]) -> str:
    """Return the report: a line an operator, then each case that did not pass, then what is left out."""
    passed = sum(outcome.status == "passed" for outcome in outcomes.values())
    lines = [
        "# The float64 oracle on ONNX's own node cases",
        "",
        (
            f"onnx {onnx.__version__}: {passed} of {len(outcomes)} cases of the covered operators pass within the operators' "
            f"own bounds ({100 * passed / len(outcomes):.1f} %). An unsupported case counts as failed. The list of operators "
            "(onnx_attest/verify/oracle/covered.toml) was committed before this was measured. A case counts for each "
            "operator in it; ratio is the largest error over its bound. Made by benchmarks/oracle_cases.py."
        ),
        "",
        "| operator | group | cases | passed | failed | unsupported | ratio |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    for operator, group in sorted(covered().items()):
        own = [outcomes[case.name] for case in cases if operator in case.operators and case.name in outcomes]
        counts = Counter(outcome.status for outcome in own)
        ratio = max((outcome.ratio for outcome in own if outcome.status == "passed"), default=0.0)
        lines.append(
            f"| {operator} | {group} | {len(own)} | {counts['passed']} | {counts['failed']} | "
            f"{counts['unsupported']} | {ratio:.2g} |"
        )
    lines += ["", "## Cases that do not pass, and why", ""]
    lines += [
        f"* `{outcome.case}`: {exceptions().get(outcome.case, outcome.status)} ({outcome.reason})"
        for outcome in outcomes.values()
        if outcome.status != "passed"
    ] or ["None."]
    reasons = Counter(reason for case in cases if (reason := left_out(case)))
    lines += ["", "## Left out", ""]
    lines += [f"* {count} cases: {reason}" for reason, count in sorted(reasons.items())]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
