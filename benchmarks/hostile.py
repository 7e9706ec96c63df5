"""Files made to do harm, thousands of them, given to the commands that read them: what becomes of each.

    python benchmarks/hostile.py [--files 5000] [--seed 0] [--jobs 2] [--keep FOLDER]

Each file is one mutation of a right one (fuzz/hostile_models.py, fuzz/hostile_files.py), the same for the same seed. It goes
to a command, as a person would give it, in a fork of this process that has everything loaded; every 25th, and each whose fork
crashed, hung or took too much memory, goes to the real command line. That has to end by itself within its limits and say
what is wrong: with exit code 2 and one line, or with a verdict. A violation is

* a traceback, or what the command line calls a fault of its own;
* a signal, a hang or memory beyond the limits;
* an end without a message: nothing on stderr beside exit code 2, or an errored cell without a reason;
* a write outside of the output folder, its own or that of a library in Python: files are opened under an audit hook.

A valid file may pass or fail. Exit code 1 if there is a violation; the files are kept then.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "fuzz"))

from makers import Given, Makers  # noqa: E402

TIME_S, MEMORY_MIB = 20, 3072
"""What a fork may take; what takes more goes to the real command line."""
REAL_S = 150
"""The command line ends a step after ten times the limit of a request, and says so; this is later."""
REAL_EVERY = 25
UNFORESEEN = "a fault of onnx-attest itself"
LOOK_S = 0.01


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int | None
    out: str
    err: str
    seconds: float
    peak_mib: float = 0.0
    why: str = ""
    wrote: tuple[str, ...] = ()


@dataclass(frozen=True)
class Result:
    """What became of a file."""

    number: int
    group: str
    kind: str
    outcome: str
    violation: str
    seconds: float
    real: bool
    said: str


# --- running ------------------------------------------------------------------------------------------------------


def forked(given: Given, case: Path) -> Ended:
    """Run a command in a fork of this process, within its limits."""
    started = time.monotonic()
    child = os.fork()
    if child == 0:
        _be_the_command([*given.arguments, *given.in_process], case)
    why, status, peak = "", 0, 0
    while True:
        ended, status, usage = os.wait4(child, os.WNOHANG)
        if ended:
            peak = max(peak, usage.ru_maxrss // 1024)
            break
        peak = max(peak, _resident_mib(child))
        if peak > MEMORY_MIB:
            why = why or f"it held {peak} MiB"
        if time.monotonic() - started > TIME_S:
            why = why or f"it took longer than {TIME_S} s"
        if why:
            os.kill(child, signal.SIGKILL)
        time.sleep(LOOK_S)
    code = os.waitstatus_to_exitcode(status)
    if code < 0 and not why:
        why = f"it was ended by {signal.Signals(-code).name}"
    texts = [(case / name).read_text(errors="replace") for name in ("stdout", "stderr")]
    wrote = (case / "wrote").read_text(errors="replace").splitlines()
    return Ended(code, *texts, time.monotonic() - started, peak, why, tuple(wrote))


def _be_the_command(arguments: Sequence[str], case: Path) -> None:
    for number, name in ((1, "stdout"), (2, "stderr")):
        descriptor = os.open(case / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(descriptor, number)
    log = os.open(case / "wrote", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.chdir(case / "cwd")
    os.environ |= {"TMPDIR": str(case / "tmp"), "ONNX_ATTEST_TRACEBACK": "1", "NO_COLOR": "1"}
    tempfile.tempdir = str(case / "tmp")
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    allowed = tuple(str(case / name) for name in ("out", ".out", "tmp"))
    sys.addaudithook(_watching(allowed, log))
    from onnx_attest.verify.cli import main

    sys.argv = ["onnx-attest", *arguments]
    sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
    code = 99
    try:
        main()
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 98
    except BaseException:  # noqa: BLE001 - it is the traceback that must not be
        import traceback

        traceback.print_exc()
        code = 97
    finally:
        import atexit

        sys.stdout.flush()
        sys.stderr.flush()
        atexit._run_exitfuncs()  # the temporary folders of runtimes
        os._exit(code)


def _watching(allowed: tuple[str, ...], log: int) -> Callable[[str, tuple[Any, ...]], None]:
    """Return an audit hook that writes down what is written elsewhere."""
    writing = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
    places = {"os.mkdir": 0, "os.remove": 0, "os.rmdir": 0, "os.rename": 1, "os.symlink": 1, "os.link": 1, "os.truncate": 0, "os.chmod": 0}  # fmt: skip
    harmless = ("/dev/null", "/proc/self/", "/dev/shm/")

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, _, flags = arguments
            if isinstance(path, int) or not isinstance(flags, int) or not flags & writing:
                return
        elif event in places:
            path = arguments[places[event]]
            if isinstance(path, int):
                return
        else:
            return
        whole = os.path.abspath(os.fsdecode(path))  # noqa: PTH100 - a link that is removed is itself meant
        if not whole.startswith((*allowed, *harmless)):
            os.write(log, f"{event} {whole}\n".encode(errors="replace"))

    return hook


def _resident_mib(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 2**20
    except (OSError, IndexError):
        return 0


def real(given: Given, case: Path) -> Ended:
    """Run the same as a person would, in an environment without traces."""
    environment = {name: value for name, value in os.environ.items() if name != "ONNX_ATTEST_TRACEBACK"}
    environment |= {"TMPDIR": str(case / "tmp"), "NO_COLOR": "1"}
    line = [sys.executable, "-m", "onnx_attest", *given.arguments, *given.limited]
    started = time.monotonic()
    process = subprocess.Popen(line, cwd=case / "cwd", env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)  # fmt: skip
    why = ""
    try:
        out, err = process.communicate(timeout=REAL_S)
    except subprocess.TimeoutExpired:
        why = f"the command line took longer than {REAL_S} s"
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
    if process.returncode < 0 and not why:
        why = f"the command line was ended by {signal.Signals(-process.returncode).name}"
    return Ended(
        process.returncode,
        out.decode(errors="replace"),
        err.decode(errors="replace"),
        time.monotonic() - started,
        why=why,
    )


def outcome_of(given: Given, ended: Ended) -> tuple[str, str]:
    """Return in a word how a command ended, and why that is a violation, "" if it is none."""
    errors = ended.err
    if ended.why:
        return "overstepped", ended.why
    if "Traceback (most recent call last)" in errors or UNFORESEEN in errors or ended.code in (97, 98, 99):
        return "traceback", errors.strip().splitlines()[-1][:300] if errors.strip() else "a traceback"
    if ended.code == 2:
        lines = [line for line in errors.splitlines() if line.startswith("onnx-attest: error: ")]
        if len(lines) != 1:
            return "refused", f"exit code 2 with {len(lines)} lines that say why: {errors[:300]!r}"
        guarded = any(
            word in lines[0] for word in ("so its process was killed", "so it was killed", "was ended by")
        )
        return ("ended and said" if guarded else "refused"), ""
    if ended.code not in (0, 1, 3):
        return "unknown", f"exit code {ended.code}: {errors[-300:]!r}"
    if not ended.out.strip():
        return "silent", f"exit code {ended.code} and nothing on stdout: {errors[-300:]!r}"
    verdict = {0: "passed", 1: "failed", 3: "inconclusive"}[ended.code]
    if "--json" in given.arguments:
        try:
            told = json.loads(ended.out)
        except ValueError as error:
            return verdict, f"no JSON: {error}"
        errored = [cell for cell in told.get("cells", []) if cell.get("verdict") == "errored"]
        if any(not cell.get("reason") for cell in errored):
            return verdict, "an errored cell without a reason"
        if any("OA812" in cell.get("findings", []) for cell in errored):
            reasons = [cell["reason"] for cell in errored if "OA812" in cell.get("findings", [])]
            return "errored by the verifier", f"unforeseen in a case: {reasons[0]}"
        verdict = "errored" if errored and ended.code == 1 else verdict
    return verdict, ""


def _tree(folder: Path) -> dict[str, tuple[int, int]]:
    found = {}
    for root, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = Path(root, name)
            about = path.lstat()
            found[str(path)] = (about.st_mode, about.st_size)
    return found


def judge(makers: Makers, number: int, base: Path) -> Result:
    """Make a file, give it to its command, and return what became of it; what is to be looked at stays."""
    case = base / f"case-{number}"
    for name in ("in", "cwd", "tmp"):
        (case / name).mkdir(parents=True)
    (case / "wrote").touch()
    group, given = makers.make(number, case)
    before = _tree(case / "in") | _tree(case / "cwd")
    ended = forked(given, case)
    outcome, violation = outcome_of(given, ended)
    is_real = False
    if not violation and ended.wrote:
        violation = f"it wrote elsewhere: {ended.wrote[0]}"
    if ended.why or (not violation and number % REAL_EVERY == 0):
        is_real = True
        shutil.rmtree(case / "tmp")
        shutil.rmtree(case / "out", ignore_errors=True)
        (case / "tmp").mkdir()
        first, ended = ended, real(given, case)
        outcome, violation = outcome_of(given, ended)
        if first.why and not violation:
            outcome = f"contained: {outcome}"
    if not violation and _tree(case / "in") | _tree(case / "cwd") != before:
        violation = "it changed what it was given, or what lies beside it"
    if not violation and (left := [one.name for one in case.iterdir() if one.name not in {"in", "cwd", "tmp", "out", "scratch", "stdout", "stderr", "wrote", ".out.run"}]):  # fmt: skip
        violation = f"it left {left[0]} behind"
    said = (ended.err.strip().splitlines() or ended.out.strip().splitlines() or [""])[-1][:300]
    if violation:
        (case / "given.json").write_text(json.dumps(asdict(given)))
    else:
        shutil.rmtree(case, ignore_errors=True)
    return Result(number, group, given.kind, outcome, violation, ended.seconds, is_real, said)


def _work(makers: Makers, numbers: Sequence[int], base: Path, path: Path) -> None:
    with path.open("w") as file:
        for number in numbers:
            file.write(json.dumps(asdict(judge(makers, number, base))) + "\n")
            file.flush()


def _load() -> None:
    """Import what a command would, once for all forks."""
    import onnxruntime  # noqa: F401

    import onnx_attest.verify.api
    import onnx_attest.verify.cli
    import onnx_attest.verify.compare
    import onnx_attest.verify.configuration.reading
    import onnx_attest.verify.conversion.cost
    import onnx_attest.verify.deploy.replay
    import onnx_attest.verify.deploy.write
    import onnx_attest.verify.inputs
    import onnx_attest.verify.journal.merge
    import onnx_attest.verify.power.job
    import onnx_attest.verify.report
    import onnx_attest.verify.runtimes.registry
    import onnx_attest.verify.static.check

    onnx_attest.verify.runtimes.registry.registered()


def run(numbers: Sequence[int], seed: int, jobs: int, base: Path) -> Iterator[Result]:
    """Yield what became of each file."""
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    sys.dont_write_bytecode = True
    makers = Makers(base / "right", seed)
    makers.prepare()
    _load()
    workers = []
    for job in range(jobs):
        child = os.fork()
        if child == 0:
            try:
                _work(makers, numbers[job::jobs], base, base / f"results-{job}.jsonl")
            except BaseException:  # noqa: BLE001 - a fork must not go on as its parent
                import traceback

                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        workers.append(child)
    broken = [child for child in workers if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])]
    for job in range(jobs):
        for line in (base / f"results-{job}.jsonl").read_text().splitlines():
            yield Result(**json.loads(line))
    if broken:
        raise SystemExit("a worker of the benchmark itself broke; see above")


def table(results: Sequence[Result]) -> str:
    """Return kind of mutation by outcome, as Markdown."""
    from tabulate import tabulate

    outcomes = sorted({one.outcome for one in results})
    counts = Counter((one.group, one.kind, one.outcome) for one in results)
    kinds = sorted({(one.group, one.kind) for one in results})
    rows = [
        [
            group,
            kind,
            sum(counts[group, kind, one] for one in outcomes),
            *(counts[group, kind, one] or "" for one in outcomes),
        ]
        for group, kind in kinds
    ]
    rows.append(
        ["all", "", len(results), *(sum(one.outcome == name for one in results) for name in outcomes)]
    )
    return str(tabulate(rows, ["read as", "mutation", "files", *outcomes], tablefmt="github"))


def main() -> int:
    """Run, print, and return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--files", type=int, default=5000)
    parser.add_argument("--first", type=int, default=0, help="number of the first file")
    parser.add_argument("--only", type=int, help="this file alone, kept")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument(
        "--keep", type=Path, default=ROOT / "build" / "hostile", help="folder of what is to be looked at"
    )
    asked = parser.parse_args()
    started = time.monotonic()
    numbers = [asked.only] if asked.only is not None else list(range(asked.first, asked.first + asked.files))
    # No TemporaryDirectory: each fork ends as a command does, and would remove it.
    base = Path(tempfile.mkdtemp(prefix="hostile-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
    try:
        results = sorted(run(numbers, asked.seed, asked.jobs, base), key=lambda one: one.number)
        wrong = [one for one in results if one.violation]
        for one in wrong:
            kept = asked.keep / f"seed-{asked.seed}-{one.number}"
            shutil.rmtree(kept, ignore_errors=True)
            shutil.copytree(base / f"case-{one.number}", kept, symlinks=True, ignore=_special)
    finally:
        shutil.rmtree(base, ignore_errors=True)
    print(table(results))
    real_ones = sum(one.real for one in results)
    print(f"\n{len(results)} files, seed {asked.seed}, {time.monotonic() - started:.0f} s; {real_ones} went to the real command line; the longest took {max(one.seconds for one in results):.0f} s")  # fmt: skip
    for one in wrong:
        print(f"VIOLATION {one.number} {one.kind}: {one.violation}")
    print(f"{len(wrong)} violations" + (f", kept in {asked.keep}" if wrong else ""))
    return int(bool(wrong))


def _special(folder: str, names: list[str]) -> list[str]:
    """Return what cannot be copied: pipes."""
    return [
        name
        for name in names
        if not (
            Path(folder, name).is_symlink() or Path(folder, name).is_dir() or Path(folder, name).is_file()
        )
    ]


if __name__ == "__main__":
    sys.exit(main())
