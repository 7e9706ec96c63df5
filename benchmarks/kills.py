"""Whether a killed run loses anything: `kill -9` at random moments of a run, each followed by `--resume`.

    python benchmarks/kills.py --kills 50

A run over a few small models is done once to its end. Then again and again: killed with all its processes (the run's group, and
each worker's, which leads a session of its own) at a moment drawn over the length of a run, and resumed. The records must
be those of the run that nobody killed but for times: none lost, none doubled, in the same order, and the exported files
too. Prints a line a kill, and how many of them came out equal. Exits with 1 unless all did.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec

from onnx_attest.verify.journal.lines import FILE
from onnx_attest.verify.records import EnvironmentRecord, RunRecord, encode, read_records
from onnx_attest.verify.workers.resident import descendants

RUNTIMES = ("ort-cpu", "openvino-cpu")
MODELS = ("sdpa", "causal", "softcap", "sdpa-naive", "sliding-window", "rotary")
"""One file each: with many small tasks kills fall before, between and behind those that are finished."""


def main() -> int:
    """Kill, resume, compare and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=50, help="how many")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--model", nargs="+", default=list(MODELS))
    parser.add_argument("--runtime", nargs="+", default=list(RUNTIMES))
    asked = parser.parse_args()
    draw = random.Random(asked.seed)
    command = [
        sys.executable,
        "-m",
        "onnx_attest",
        "run",
        "--no-latency",
        "--no-claims",
        "--dtype",
        "float32",
        "--variant",
        "decomposed",
    ]
    command += [f"--model={name}" for name in asked.model] + [f"--runtime={name}" for name in asked.runtime]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        length_s = whole(command, folder / "whole")
        expected = contents(folder / "whole")
        print(f"a run takes {length_s:.1f} s and leaves {len(expected)} records and files", flush=True)
        equal = number = 0
        while number < asked.kills:
            report = folder / f"report-{number}"
            after_s = draw.uniform(0, length_s)
            if (ended_s := started_and_killed(command, report, after_s)) is not None:
                length_s = ended_s  # too late: the machine has less to do than before
                shutil.rmtree(report)
                continue
            number += 1
            kept = units(report)
            same, took_s, told = resumed(command, report, expected)
            if kept == 0:  # it was a whole run: the machine may have more to do than before
                length_s = took_s
            equal += same
            print(f"{number}: killed after {after_s:.1f} s, {kept} tasks finished, {told}", flush=True)
    print(f"{equal} of {asked.kills} killed runs, resumed, gave the records of the whole run")
    return 0 if equal == asked.kills else 1


def whole(command: list[str], report: Path) -> float:
    """Do the run to its end, and return how long it took."""
    begun = time.monotonic()
    subprocess.run([*command, "-o", str(report)], stdout=subprocess.DEVNULL, check=False)
    return time.monotonic() - begun


def started_and_killed(command: list[str], report: Path, after_s: float) -> float | None:
    """Start a run and kill it after a time; return None, or the seconds in which it came to its end before."""
    begun = time.monotonic()
    process = subprocess.Popen(
        [*command, "-o", str(report)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(after_s)
        return time.monotonic() - begun
    kill(process.pid)
    process.wait()
    return None


def resumed(command: list[str], report: Path, expected: list[bytes]) -> tuple[bool, float, str]:
    """Resume a killed run; return whether that gave what was expected, its seconds, and a line about it."""
    begun = time.monotonic()
    again = subprocess.run(
        [*command, "-o", str(report), "--resume"], capture_output=True, text=True, check=False
    )
    took_s = time.monotonic() - begun
    found = contents(report) if report.is_dir() else []
    lost, doubled = len(set(expected) - set(found)), len(found) - len(set(found))
    left = list(report.parent.glob(f".{report.name}*"))
    same = found == expected and not left
    verdict = (
        "equal"
        if same
        else f"NOT EQUAL: {lost} lost, {doubled} doubled, {len(left)} left; {again.stderr.strip()}"
    )
    return same, took_s, f"resumed in {took_s:.1f} s: {verdict}"


def kill(pid: int) -> None:
    """End a process, all that it started, and the sessions that these lead, at once and without a word."""
    for one in (pid, *descendants(pid)):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(one, signal.SIGKILL)


def units(report: Path) -> int:
    """Return how many tasks the journal of an unfinished run holds whole."""
    path = report.with_name(f".{report.name}.run") / FILE
    lines = path.read_bytes().split(b"\n")[1:-1] if path.exists() else []
    return sum(b'"name":"environment' not in line for line in lines)


def contents(report: Path) -> list[bytes]:
    """Return the records of a report but for times and environment, in their order, and its exported files."""
    found = []
    for record in read_records(report):
        if isinstance(record, RunRecord):
            record = msgspec.structs.replace(record, duration_s=0.0)
        if not isinstance(record, EnvironmentRecord):
            found.append(encode([record]))
    files = sorted((report / "artifacts").iterdir())
    return found + [path.name.encode() + b" " + path.read_bytes() for path in files]


if __name__ == "__main__":
    sys.exit(main())
