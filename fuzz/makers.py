"""Right files of each kind that is read, what spoils them, and the command that each is given to."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from hostile_files import KNOWN, SETTINGS, odd_json, odd_npz, odd_records, odd_tensor, odd_toml, spoil_bundle
from hostile_models import MUTATIONS, mutated
from seeds import seeds

REFERENCE = Path(__file__).resolve().parent.parent / "reports" / "reference"
REAL_LIMITS = ("--time-limit", "10", "--memory-limit", "2048")
SHARES = (("model", 0.66), ("inputs", 0.08), ("manifest", 0.07), ("bundle", 0.05), ("records", 0.08), ("journal", 0.02), ("settings", 0.04))  # fmt: skip
RUNTIMES = ("--runtime", "onnx-reference", "--runtime", "ort-cpu")
BUDGET = ("--time-budget", "0.2")


@dataclass(frozen=True)
class Given:
    """One file as it is given to a command.

    Attributes:
        kind: what was done to it.
        arguments: of the command line.
        in_process: those that keep runtimes in the process of a fork.
        limited: those that a command with limits takes.
    """

    kind: str
    arguments: tuple[str, ...]
    in_process: tuple[str, ...] = ()
    limited: tuple[str, ...] = ()


class Makers:
    """Right files, and the functions that spoil copies of them."""

    def __init__(self, folder: Path, seed: int) -> None:
        self._seed, self._folder = seed, folder
        self._seeds = seeds()
        self._names = sorted(MUTATIONS)
        self._lines = (REFERENCE / "records.jsonl").read_bytes().splitlines()
        self._arrays = {"x": np.random.default_rng(0).standard_normal((2, 5, 4)).astype(np.float32)}
        folder.mkdir(parents=True, exist_ok=True)
        self._plain = folder / "plain.onnx"
        self._plain.write_bytes(self._seeds["plain"].SerializeToString())

    def prepare(self) -> None:
        """Make a bundle and the journals of two shards with the command line."""
        reference = str(REFERENCE)
        _command("deploy", self._plain, "--records", reference, "--force", "-o", self._folder / "bundle")
        for part in ("1/2", "2/2"):
            out = self._folder / f"shard-{part[0]}"
            _command("verify", self._plain, "--runtime", "onnx-reference", "--shard", part, "-o", out)
        self.whole = _manifest(self._seeds["plain"])

    def make(self, number: int, case: Path) -> tuple[str, Given]:
        """Return the group of a file and how it is given; `case` is its folder, the file goes to `case/in`."""
        rng = random.Random(f"{self._seed}/{number}/how")
        names, shares = zip(*SHARES, strict=True)
        (group,) = random.Random(f"{self._seed}/{number}/group").choices(names, shares)
        return group, getattr(self, f"_{group}")(rng, number, case)

    def _model(self, rng: random.Random, number: int, case: Path) -> Given:
        kind, data = mutated(self._names, self._seeds, self._seed, number, case / "in")
        path = case / "in" / "model.onnx"
        path.write_bytes(data)
        choice = rng.random()
        if choice < 0.3:
            more = rng.choice(((), ("--json",), ("--attention",)))
            return Given(kind, ("check", str(path), *more))
        limited = ("--in-process",), REAL_LIMITS
        verify = ("verify", str(path), *RUNTIMES, *BUDGET)
        if choice < 0.75:
            return Given(kind, (*verify, "--json"), *limited)
        if choice < 0.85:
            return Given(kind, (*verify, "-o", str(case / "out")), *limited)
        if choice < 0.88:
            return Given(kind, (*verify, "--against", str(self._plain)), *limited)
        if choice < 0.91:
            return Given(kind, (*verify, "--relations-only"), *limited)
        if choice < 0.94:
            return Given(kind, ("power", str(path), "--runtime", "onnx-reference"), *limited)
        if choice < 0.97:
            to = rng.choice(("fp16", "int8-dynamic", "ort-fused"))
            return Given(kind, ("convert", str(path), "--to", to, "-o", str(case / "out" / "converted.onnx")))
        reference = str(REFERENCE)
        return Given(kind, ("deploy", str(path), "--records", reference, "--force", "-o", str(case / "out")))

    def _inputs(self, rng: random.Random, number: int, case: Path) -> Given:
        if rng.random() < 0.65:
            kind, path = "inputs, .npz", case / "in" / "inputs.npz"
            path.write_bytes(odd_npz(rng, self._arrays))
        else:
            kind, path = "inputs, .pb", case / "in" / "test_data_set_0"
            path.mkdir()
            (path / "input_0.pb").write_bytes(odd_tensor(rng, self._arrays["x"], "x"))
        verify = ("verify", str(self._plain), *RUNTIMES, *BUDGET, "--json", "--load-inputs", str(path))
        return Given(kind, verify, ("--in-process",), REAL_LIMITS)

    def _manifest(self, rng: random.Random, number: int, case: Path) -> Given:
        path = case / "in" / "plain.onnx"
        shutil.copyfile(self._plain, path)
        path.with_name("plain.manifest.json").write_bytes(odd_json(rng, self.whole))
        if rng.random() < 0.3:
            return Given("manifest", ("check", str(path)))
        return Given(
            "manifest", ("verify", str(path), *RUNTIMES, *BUDGET, "--json"), ("--in-process",), REAL_LIMITS
        )

    def _bundle(self, rng: random.Random, number: int, case: Path) -> Given:
        path = case / "in" / "bundle"
        shutil.copytree(self._folder / "bundle", path)
        (case / "scratch").mkdir()

        def model(rng: random.Random) -> bytes:
            return mutated(self._names, self._seeds, self._seed, rng.randrange(10**6), case / "scratch")[1]

        kind = spoil_bundle(rng, path, model)
        return Given(kind, ("replay", str(path), "--runtime", "ort-cpu", "--json"))

    def _records(self, rng: random.Random, number: int, case: Path) -> Given:
        path = case / "in" / "records.jsonl"
        path.write_bytes(odd_records(rng, self._lines))
        view = rng.choice(("md", "html", "json", "junit", "github", "csv", "accuracy.md", "stability.md", "latency.md", "relations.md", "claims.md", "power.md", "findings.csv", "latency.csv"))  # fmt: skip
        reference = str(REFERENCE)
        choice = rng.random()
        if choice < 0.5:
            return Given("records", ("report", str(path), "--format", view))
        if choice < 0.6:
            return Given("records", ("report", str(path)))
        if choice < 0.75:
            return Given("records", ("report", str(path), "-o", str(case / "out")))
        if choice < 0.85:
            return Given("records", ("compare", str(path), reference))
        if choice < 0.95:
            return Given("records", ("compare", reference, str(path), "--json"))
        return Given("records", ("evidence", str(path), "-o", str(case / "out")))

    def _journal(self, rng: random.Random, number: int, case: Path) -> Given:
        for part in ("1", "2"):
            shutil.copytree(self._folder / f"shard-{part}", case / "in" / part)
        path = case / "in" / "1" / "journal.jsonl"
        path.write_bytes(odd_records(rng, path.read_bytes().splitlines()))
        return Given(
            "journal", ("merge", str(case / "in" / "1"), str(case / "in" / "2"), "-o", str(case / "out"))
        )

    def _settings(self, rng: random.Random, number: int, case: Path) -> Given:
        if rng.random() < 0.6:
            (case / "cwd" / "onnx-attest.toml").write_bytes(odd_toml(rng, SETTINGS))
            (case / "cwd" / "known.toml").write_text(KNOWN)
            more: tuple[str, ...] = ()
        else:
            path = case / "in" / "known.toml"
            path.write_bytes(odd_toml(rng, KNOWN))
            more = ("--known", str(path))
        arguments = ("verify", str(self._plain), *RUNTIMES[:2], *BUDGET, "--json", *more)
        return Given("settings", arguments, ("--in-process",), REAL_LIMITS)


def _manifest(model: onnx.ModelProto) -> Any:
    """Return the manifest that an export of the file would have, as JSON."""
    import msgspec

    from onnx_attest.export.artifact import Asked, Got, Manifest, digest
    from onnx_attest.models.contract import Contract, TensorSpec

    axes = {"x": ("batch", "n", 4), "y": ("batch", "n", 4)}
    contract = Contract(
        (TensorSpec("x", axes["x"], role="tokens"),),
        (TensorSpec("y", axes["y"], role="output"),),
        {"batch": 2, "n": 5},
    )
    operators = dict(Counter(node.op_type for node in model.graph.node))
    return msgspec.to_builtins(
        Manifest(
            model="plain", variant="decomposed", dtype="float32", arithmetic="fp32", sha256=digest(model.SerializeToString()),
            contract=contract, asked=Asked(18, "decomposed", ("x",), ("y",), axes), got=Got(18, ("x",), ("y",), axes, operators),
            versions={"torch": "2.13.0"},
        )
    )  # fmt: skip


def _command(*arguments: object) -> None:
    """Run the command line, which has to work; its verdict does not matter."""
    done = subprocess.run(
        [sys.executable, "-m", "onnx_attest", *map(str, arguments)], capture_output=True, text=True
    )
    if done.returncode not in (0, 1, 3):
        raise SystemExit(f"{arguments}: {done.stderr}")
