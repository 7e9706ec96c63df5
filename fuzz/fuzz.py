"""Coverage-guided fuzzing of all that reads a file, with atheris.

    python fuzz/fuzz.py TARGET [libFuzzer options]

    python -m pip install --editable ".[fuzz,cpu]"
    python fuzz/fuzz.py model -max_total_time=600

TARGET is one of `model`, `inputs`, `bundle`, `manifest`, `records`, `journal`, `settings`. The corpus is made of the
mutations of fuzz/hostile_*.py when it begins, and the mutations go on with what the fuzzer finds; nothing of it is kept but what broke
something: build/fuzz/TARGET-*. A finding is anything but an answer or a `UsageError`: another exception, a crash, a hang
(-timeout), memory (-rss_limit_mb). Our own modules are instrumented, onnx's native code is not.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "fuzz"))
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import atheris  # noqa: E402

with atheris.instrument_imports(include=["onnx_attest"]):
    from onnx_attest.errors import UsageError
    from onnx_attest.export.artifact import read_artifact
    from onnx_attest.export.bundle import load
    from onnx_attest.verify.asked_got import compare_asked_and_got
    from onnx_attest.verify.cases import plan_cases
    from onnx_attest.verify.compare import compare
    from onnx_attest.verify.compare.render import as_markdown, as_object
    from onnx_attest.verify.configuration import read_configuration
    from onnx_attest.verify.conformance.matrix import read_report
    from onnx_attest.verify.deploy import replay
    from onnx_attest.verify.expected import Expected
    from onnx_attest.verify.inputs import load_inputs
    from onnx_attest.verify.journal.lines import read_units
    from onnx_attest.verify.journal.merge import merge
    from onnx_attest.verify.known import read_known
    from onnx_attest.verify.records import read_records
    from onnx_attest.verify.report import render
    from onnx_attest.verify.report.terminal import terminal
    from onnx_attest.verify.runtimes.configured import configured
    from onnx_attest.verify.signature import read_signature
    from onnx_attest.verify.static.check import check_file

import numpy as np  # noqa: E402
import onnx  # noqa: E402
from hostile_files import KNOWN, SETTINGS, odd_json, odd_npz, odd_records, odd_tensor, odd_toml, sign  # noqa: E402
from hostile_models import MUTATIONS, change_a_field, mutated  # noqa: E402
from makers import Makers  # noqa: E402
from seeds import seeds  # noqa: E402

FOLDER = Path(tempfile.mkdtemp(prefix="fuzz-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
PLAIN = FOLDER / "plain.onnx"
BUNDLE, SHARDS = FOLDER / "bundle", FOLDER / "right"
REFERENCE = ROOT / "reports" / "reference" / "records.jsonl"
WHOLE = 200
"""Files of the corpus that the mutations make."""
NEVER = frozenset({"nested functions", "cyclic functions", "functions that double", "huge results", "loops without end", "data that is a link, a pipe or a device"})  # fmt: skip
"""What only a process that is watched survives, or what bytes do not hold: benchmarks/hostile.py has these."""


def model(data: bytes) -> None:
    """Check a file, read its signature, find what is in it, and evaluate it once in float64."""
    path = FOLDER / "model.onnx"
    path.write_bytes(data)
    with contextlib.suppress(UsageError):
        checked = check_file(path)
        checked.as_text(attention=True)
        checked.as_object()
    artifact = read_artifact(path)
    signature = read_signature(artifact)
    plan_cases(signature.contract, seed=0, attention=True)
    expected = Expected(signature)
    if not expected.reason:
        expected.takes_its_own_sizes()


def manifest(data: bytes) -> None:
    """Read a file with this manifest beside it."""
    PLAIN.with_name("plain.manifest.json").write_bytes(data)
    artifact = read_artifact(PLAIN)
    signature = read_signature(artifact)
    compare_asked_and_got(artifact, signature)
    expected = Expected(signature)
    cases = plan_cases(signature.contract, seed=0, attention=True)
    if cases and not expected.reason:
        expected.takes_its_own_sizes()


def inputs(data: bytes) -> None:
    """Load inputs: bytes that begin as a zip are an .npz, others an input_0.pb."""
    signature = read_signature(read_artifact(PLAIN))
    if data[:2] == b"PK":
        path = FOLDER / "inputs.npz"
        path.write_bytes(data)
    else:
        path = FOLDER / "test_data_set_0"
        path.mkdir(exist_ok=True)
        (path / "input_0.pb").write_bytes(data)
    load_inputs(path, signature)


def bundle(data: bytes) -> None:
    """Open a bundle one of whose files is this, with digests that hold."""
    if not data:
        return
    names = ("bundle.json", "test_data_set_0/reference.npz", "SHA256SUMS", "model.onnx")
    name = names[data[0] % len(names)]
    before = (BUNDLE / name).read_bytes()
    sums = (BUNDLE / "SHA256SUMS").read_bytes()
    try:
        (BUNDLE / name).write_bytes(data[1:])
        if name != "SHA256SUMS":
            sign(BUNDLE)
        opened = load(BUNDLE)
        replay._refuse_unknown(opened)
        for one in opened.about.data:
            replay._read(opened, one)
    finally:
        (BUNDLE / name).write_bytes(before)
        (BUNDLE / "SHA256SUMS").write_bytes(sums)


def records(data: bytes) -> None:
    """Read records, and make every view and a comparison of them."""
    path = FOLDER / "records.jsonl"
    path.write_bytes(data)
    read = read_records(path)
    views = render(read)
    for name in views:
        views[name].encode()
    terminal(read, 80, colours=True)
    for one, other in ((RIGHT, read), (read, RIGHT)):
        found = compare(one, other)
        as_markdown(found)
        json.dumps(as_object(found), default=str)


def journal(data: bytes) -> None:
    """Merge two shards, of which one has this journal; and read it as a report of conformance."""
    path = SHARDS / "shard-1" / "journal.jsonl"
    path.write_bytes(data)
    with contextlib.suppress(UsageError):
        read_report(path)
    read_units(path)
    try:
        merge([SHARDS / "shard-1", SHARDS / "shard-2"], FOLDER / "merged", FOLDER / "no evidence")
    finally:
        shutil.rmtree(FOLDER / "merged", ignore_errors=True)


def settings(data: bytes) -> None:
    """Read settings, with the runtimes that they name, and a list of known failures."""
    folder = FOLDER / "settings"
    folder.mkdir(exist_ok=True)
    (folder / "onnx-attest.toml").write_bytes(data)
    with contextlib.suppress(UsageError):
        read_known(folder / "onnx-attest.toml")
    read = read_configuration(folder)
    read.stand_in("verify")
    from onnx_attest.verify.configuration.resolved import resolved
    from onnx_attest.verify.runtimes.registry import select

    resolved("verify", {}, read)
    configured({"onnx-reference", "ort-cpu"}, lambda name: select((name,))[0], folder)


TARGETS: dict[str, Callable[[bytes], None]] = {
    "model": model, "manifest": manifest, "inputs": inputs, "bundle": bundle, "records": records, "journal": journal, "settings": settings,
}  # fmt: skip
RIGHT = read_records(REFERENCE)[:400]
LINES = REFERENCE.read_bytes().splitlines()
SEEDS = seeds()
NAMES = [name for name in sorted(MUTATIONS) if name not in NEVER]


class Made:
    """The corpus of a target, and its further mutations."""

    def __init__(self, target: str) -> None:
        self._target, self._makers = target, None
        if target in ("bundle", "journal", "manifest"):
            self._makers = Makers(SHARDS, 0)
            self._makers.prepare()
        if target == "bundle":
            shutil.copytree(SHARDS / "bundle", BUNDLE)

    def make(self, rng: random.Random) -> bytes:
        """Return one hostile file of the target."""
        return bytes(getattr(self, f"_{self._target}")(rng))

    def _model(self, rng: random.Random) -> bytes:
        return mutated(NAMES, SEEDS, 0, rng.randrange(10**9), FOLDER)[1]

    def _manifest(self, rng: random.Random) -> bytes:
        assert self._makers is not None
        return odd_json(rng, self._makers.whole)

    def _inputs(self, rng: random.Random) -> bytes:
        array = np.zeros((2, 5, 4), np.float32)
        return odd_npz(rng, {"x": array}) if rng.random() < 0.6 else odd_tensor(rng, array, "x")

    def _bundle(self, rng: random.Random) -> bytes:
        about = json.loads((BUNDLE / "bundle.json").read_text())
        with np.load(BUNDLE / "test_data_set_0" / "reference.npz") as file:
            held = dict(file)
        number = rng.randrange(4)
        made = (
            lambda: odd_json(rng, about),
            lambda: odd_npz(rng, held),
            lambda: (BUNDLE / "SHA256SUMS").read_bytes()[: rng.randrange(500)],
            lambda: self._model(rng),
        )[number]()
        return bytes([number]) + made

    def _records(self, rng: random.Random) -> bytes:
        return odd_records(rng, LINES)

    def _journal(self, rng: random.Random) -> bytes:
        return odd_records(rng, (SHARDS / "shard-2" / "journal.jsonl").read_bytes().splitlines())

    def _settings(self, rng: random.Random) -> bytes:
        return odd_toml(rng, rng.choice((SETTINGS, KNOWN)))

    def more(self, data: bytes, most: int, seed: int) -> bytes:
        """Return a mutation of what the fuzzer holds: its own, of the format, or a new one."""
        rng = random.Random(seed)
        choice = rng.random()
        if choice < 0.15:
            return self.make(rng)[:most]
        if self._target == "model" and choice < 0.6:
            held = onnx.ModelProto()
            try:
                held.ParseFromString(data)
                change_a_field(rng, held)
                return held.SerializeToString()[:most]
            except Exception:  # noqa: BLE001 - it is no message any more
                return bytes(atheris.Mutate(data, most))
        if self._target in ("manifest", "records", "journal") and choice < 0.6:
            return _within_lines(rng, data)[:most]
        return bytes(atheris.Mutate(data, most))


def _within_lines(rng: random.Random, data: bytes) -> bytes:
    """Return JSON lines one of which is changed as JSON."""
    lines = data.splitlines()
    for _ in range(3):
        place = rng.randrange(len(lines)) if lines else 0
        try:
            lines[place] = odd_json(rng, json.loads(lines[place]))
        except (ValueError, IndexError, RecursionError):
            continue
        break
    return b"\n".join(lines) + b"\n"


def main() -> None:
    """Fuzz one target."""
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    if name not in TARGETS:
        raise SystemExit(f"{__doc__}\n{name!r} is no target")
    PLAIN.write_bytes(SEEDS["plain"].SerializeToString())
    made, kept = Made(name), ROOT / "build" / "fuzz"
    kept.mkdir(parents=True, exist_ok=True)
    corpus = FOLDER / "corpus"
    corpus.mkdir()
    for number in range(WHOLE):
        (corpus / str(number)).write_bytes(made.make(random.Random(number)))
    target = TARGETS[name]

    def once(data: bytes) -> None:
        # What libraries print about a file is nothing to read here.
        with contextlib.suppress(UsageError), contextlib.redirect_stderr(io.StringIO()):
            target(data)

    given = [one for one in sys.argv[2:] if not one.startswith("-")]
    options = [one for one in sys.argv[2:] if one.startswith("-")]
    usual = ["-max_len=65536", "-timeout=30", "-rss_limit_mb=4096", f"-artifact_prefix={kept / name}-"]
    places = given or [str(corpus)]
    atheris.Setup([sys.argv[0], *usual, *options, *places], once, custom_mutator=made.more)
    try:
        atheris.Fuzz()
    finally:
        shutil.rmtree(FOLDER, ignore_errors=True)


if __name__ == "__main__":
    main()
