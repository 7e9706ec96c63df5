"""One file on every runtime that works here: a line for each, a report, and an exit code for your pipeline.

    python cross_runtime.py attention.onnx report

Change: REQUIRED, the runtimes that you deploy to. Without them nothing is proven, and the exit code is 3. To hold the
file against its module as well, give `verify` also `against=module`.
"""

from __future__ import annotations

import sys
from collections import Counter

from onnx_attest.errors import UsageError
from onnx_attest.verify import verify

REQUIRED = ("ort-cpu",)


def main(path: str, folder: str) -> int:
    """Print what each runtime made of the file, and return the exit code: 0 verified, 1 failed, 2 bad input, 3 not proven."""
    try:
        report = verify(path, require=REQUIRED)
        report.save(folder)
    except UsageError as error:
        print(error, file=sys.stderr)
        return 2
    counts: dict[str, Counter[str]] = {}
    for cell in report.cells:
        counts.setdefault(cell.runtime, Counter())[cell.verdict] += 1
    for runtime, verdicts in counts.items():
        print(f"{runtime:22} {', '.join(f'{count} {verdict}' for verdict, count in verdicts.items())}")
    for finding in report.findings:
        if finding.severity == "error" and not finding.known:
            print(f"{finding.code} {finding.runtime}: {finding.message}\n  next: {finding.next_step}")
    print(f"{report.verdict}; every number is in {folder}")
    return report.run.exit_code


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        print(__doc__, file=sys.stderr)
        sys.exit(2)
    sys.exit(main(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "report"))
