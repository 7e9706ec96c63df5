"""The float64 oracle on ONNX's own node cases: how many of each operator's it evaluates, and whether it is right.

    python benchmarks/oracle_cases.py [OPERATOR ...] [-o reports/reference/operators.md]

An unsupported case of a covered operator counts as failed.
"""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path

import numpy as np

from onnx_attest.verify.node_cases import judge_case, left_out, node_cases


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


if __name__ == "__main__":
    main()
