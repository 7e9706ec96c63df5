#!/usr/bin/env python3
"""Replay this bundle with nothing but NumPy and ONNX Runtime: every digest, then every set of test data.

    python replay.py [--provider CPUExecutionProvider]

Each output is held against its float64 value with the rounding bound that was derived for it, from the inputs of the file
to its end, and its noise against that of correct implementations. Exit code 0: right here. 1: wrong here. 2: this is not
the bundle that was made. 3: nothing is proven: the bundle was made by force, has no test data, or has outputs without a
bound; or the provider is not here, or runs none of the nodes.
"""

from __future__ import annotations

import sys

if __name__ == "__main__" and not (sys.flags.isolated or getattr(sys.flags, "safe_path", False)):
    sys.path.pop(0)  # this folder, where somebody may have put a json.py: it is to be found, not to be run

import argparse
import hashlib
import json
import math
import re
import tempfile
import time
from pathlib import Path
from typing import Any

CPU = "CPUExecutionProvider"
CALLS = 5
"""Of each set, for the time that one takes."""
FILES = re.compile(r"file|path|folder|dir(?![a-z])|profil")
"""In the names of options by which ONNX Runtime reads or writes files."""
LINE = re.compile(r"([0-9a-f]{64})  ([A-Za-z0-9_+-][A-Za-z0-9._+-]*(?:/[A-Za-z0-9_+-][A-Za-z0-9._+-]*)*)")


class RefusedError(Exception):
    """The bundle is not what its list of digests says."""


def digest_of(path: Path) -> str:
    """Return the sha256 of a file."""
    found = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            found.update(block)
    return found.hexdigest()


def check_digests(folder: Path) -> str:
    """Return the name of the bundle, once every byte of it is what the list says."""
    try:
        if (folder / "SHA256SUMS").is_symlink() or not (folder / "SHA256SUMS").is_file():
            raise RefusedError("SHA256SUMS is not there, or is no file")
        listed = (folder / "SHA256SUMS").read_bytes()
        text = listed.decode("ascii")
    except (OSError, UnicodeDecodeError) as error:
        raise RefusedError(f"SHA256SUMS: {error}") from error
    lines = [found for line in text[:-1].split("\n") if (found := LINE.fullmatch(line))]
    if not text.endswith("\n") or len(lines) != text.count("\n"):
        raise RefusedError("SHA256SUMS has a line that is not '<sha256>  <path>'")
    digests = {line[2]: line[1] for line in lines}
    if list(digests) != sorted(digests) or len(digests) != len(lines):
        raise RefusedError("SHA256SUMS is not in order, or has a file twice")
    there, left = set(), [folder]
    while left:
        at = left.pop()
        held = list(at.iterdir())
        if not held:
            raise RefusedError(f"{at.relative_to(folder).as_posix()} is an empty folder")
        left += [path for path in held if path.is_dir() and not path.is_symlink()]
        there |= {
            path.relative_to(folder).as_posix() for path in held if path.is_symlink() or not path.is_dir()
        }
    for path in sorted(there ^ {*digests, "SHA256SUMS"}):
        raise RefusedError(
            f"{path} is {'not in SHA256SUMS' if path in there else 'in SHA256SUMS and not there'}"
        )
    for path, digest in digests.items():
        file = folder / path
        if file.is_symlink() or not file.is_file() or digest_of(file) != digest:
            raise RefusedError(f"{path} does not have the digest that SHA256SUMS says")
    return hashlib.sha256(listed).hexdigest()


def judge(np: Any, actual: Any, dtype: str, value: Any, bound: Any) -> tuple[str, float]:
    """Return why an output is wrong ("" if it is not) and its largest error over the bound; an infinite one is none."""
    if (actual.dtype.name, actual.shape) != (dtype, value.shape):
        return f"{actual.dtype} {actual.shape}, it should be {dtype} {value.shape}", math.inf
    if bound is None:
        wrong = int((actual != value).sum())
        return (f"{wrong} of {actual.size} differ" if wrong else ""), float(bool(wrong))
    y, value = actual.astype(np.float64), value.astype(np.float64)
    largest = float(np.finfo(actual.dtype).max) if actual.dtype.kind == "f" else math.inf
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        size = np.abs(value)
        stored = np.where(size > largest, np.copysign(np.inf, value), value)
        # Within its bound of the largest number, rounding decides between that and an infinity of the same sign.
        either = np.isfinite(value) & (size + bound > largest) & (size - bound <= largest)
        misplaced = np.isnan(y) != np.isnan(stored)
        misplaced |= (np.isposinf(y) != np.isposinf(stored)) & ~(either & (value > 0))
        misplaced |= (np.isneginf(y) != np.isneginf(stored)) & ~(either & (value < 0))
        finite = np.isfinite(y) & np.isfinite(value)
        error = np.where(finite, np.abs(y - value), 0.0)
        ratio = np.where((error == 0) | ~np.isfinite(bound), 0.0, error / bound)
    if misplaced.any():
        return (
            f"NaN or infinity in {int(misplaced.sum())} of {misplaced.size} places where there should be none, or none where there should",
            math.inf,
        )
    worst = float(ratio.max(initial=0.0))
    return (f"{worst:.3g} times its bound" if worst > 1 else ""), worst


def squares_of(np: Any, actual: Any, value: Any, deviation: Any, floor: float) -> Any:
    """Return the squares of z, of what are numbers on both sides; what may flush to zero counts into the deviation."""
    y = actual.astype(np.float64)
    with np.errstate(invalid="ignore"):
        error = np.where(np.isfinite(y) & np.isfinite(value), y - value, 0.0)
    known = np.isfinite(value) & ((deviation > 0) | (error != 0))
    return error[known] ** 2 / (deviation[known] ** 2 + floor**2)


def refuse_no_numbers(np: Any, held: Any) -> None:
    """Refuse bounds, deviations and limits that nothing is beyond."""
    for name, array in held.items():
        kind, _, index = name.partition("_")
        if kind in ("bound", "deviation"):
            array = array[np.isfinite(held[f"value_{index}"])]
        if kind in ("bound", "deviation", "limits", "floor") and not (array >= 0).all():
            raise ValueError(f"{name} is negative or NaN")
    if "limits" in held and not np.isfinite(held["limits"][0]):
        raise ValueError("the noise has no limit")


def all_bounded(np: Any, held: Any) -> bool:
    """Whether each number that the outputs should be has a bound."""
    bounds = {name: array for name, array in held.items() if name.startswith("bound_")}
    return all(
        np.isfinite(array[np.isfinite(held[name.replace("bound", "value")])]).all()
        for name, array in bounds.items()
    )


def opened_with(onnxruntime: Any, known: Any) -> tuple[Any, dict[str, str]]:
    """Return the options of a session and of its provider that were verified, ONNX Runtime's own if none were."""
    options = onnxruntime.SessionOptions()
    if known is None:
        return options, {}
    for key, value in known["session_options"].items():
        now: Any = None if "." in key else getattr(options, key)
        if FILES.search(key):
            raise ValueError(f"it was verified with {key}, a file of some machine")
        if "." in key:
            options.add_session_config_entry(key, value)
        elif isinstance(now, bool):
            setattr(options, key, value.lower() in ("1", "true"))
        else:
            kind = type(now)
            setattr(options, key, kind.__members__[value] if hasattr(kind, "__members__") else kind(value))
    if not known["optimised"]:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    if strange := [key for key in known["provider_options"] if FILES.search(key)]:
        raise ValueError(f"it was verified with {strange[0]}, a file of some machine")
    return options, known["provider_options"]


def main() -> int:
    """Check and run."""
    for stream in (sys.stdout, sys.stderr):  # names of tensors are any text, terminals are not
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--provider", default=CPU)
    asked = parser.parse_args()
    folder = Path(__file__).resolve().parent
    try:
        print(f"bundle {check_digests(folder)}")
    except (RefusedError, OSError) as error:  # OSError: a file that cannot be read
        print(f"replay: {error}", file=sys.stderr)
        return 2
    try:
        import numpy as np
        import onnxruntime
    except ImportError as error:
        print(f"replay: {error}; it needs NumPy and ONNX Runtime", file=sys.stderr)
        return 2
    try:
        return replay(np, onnxruntime, folder, asked.provider)
    except Exception as error:  # noqa: BLE001 - whatever is in its files, it is not what deploy writes
        told = " ".join(f"{type(error).__name__}: {error}".split())
        print(f"replay: this is no bundle of onnx-attest: {told}", file=sys.stderr)
        return 2


def nodes_by_provider(profile: str) -> dict[str, int]:
    """Return how many nodes ran where, by a profile of ONNX Runtime."""
    events = json.loads(Path(profile).read_text(encoding="utf-8"))
    nodes = {
        one["name"]: one["args"]["provider"]
        for one in events
        if one.get("cat") == "Node" and "provider" in one.get("args", {})
    }
    return {name: list(nodes.values()).count(name) for name in dict.fromkeys(nodes.values())}


def replay(np: Any, onnxruntime: Any, folder: Path, provider: str) -> int:
    """Run the sets, and return the exit code."""
    about = json.loads((folder / "bundle.json").read_text(encoding="utf-8"))
    known_as = digest_of(folder / "model.onnx")
    if about["weights"]:
        lines = [f"{digest_of(folder / name)}  {name}\n" for name in sorted(about["weights"])]
        known_as = hashlib.sha256("".join([f"{known_as}\n", *lines]).encode()).hexdigest()
    if known_as != about["sha256"]:
        raise ValueError("bundle.json is about another file than model.onnx, or other weights beside it")
    if strange := [name for name in about["data"] if not re.fullmatch("test_data_set_[0-9]+", name)]:
        raise ValueError(f"{strange[0]!r} is no set of test data")
    if about["unverified"]:
        print(f"UNVERIFIED: {about['unverified']}")
    for one in about["inputs"] + about["outputs"]:
        if not hasattr(np, one["dtype"]) and one["dtype"] not in ("bool", "str"):
            print(f"replay: NumPy has no {one['dtype']}; use onnx-attest replay", file=sys.stderr)
            return 2
    known = next((one for one in about["verified"] if one["provider"] == provider), None)
    options, provider_options = opened_with(onnxruntime, known)
    if provider not in (there := onnxruntime.get_available_providers()):
        print(f"replay: this ONNX Runtime has no {provider}; it has {', '.join(there)}", file=sys.stderr)
        return 3
    with tempfile.TemporaryDirectory(prefix="replay-") as scratch:
        if provider != CPU:  # a profile says where nodes ran; what is asked for may run none of them
            options.enable_profiling = True
            options.profile_file_prefix = str(Path(scratch) / "nodes")
        return run_sets(np, onnxruntime, folder, about, provider, known, options, provider_options)


def run_sets(
    np: Any,
    onnxruntime: Any,
    folder: Path,
    about: Any,
    provider: str,
    known: Any,
    options: Any,
    provider_options: Any,
) -> int:
    """Open a session, run the sets in it, and return the exit code."""
    try:
        session = onnxruntime.InferenceSession(
            str(folder / "model.onnx"), options, providers=[(provider, provider_options)], enable_fallback=0
        )
    except Exception as error:  # noqa: BLE001 - in its own words
        print(f"replay: ONNX Runtime does not open it: {' '.join(str(error).split())}", file=sys.stderr)
        return 1
    if session.get_providers()[0] != provider:
        print(f"replay: asked for {provider}, got {', '.join(session.get_providers())}", file=sys.stderr)
        return 3
    print(f"ONNX Runtime {onnxruntime.__version__} on {', '.join(session.get_providers())}")
    print("opened with its own options" if known is None else f"opened as {known['runtime']} was")
    names = [one["name"] for one in about["outputs"]]
    failed, unbounded, taken = False, False, []
    for name in about["data"]:
        with np.load(folder / name / "reference.npz") as file:
            held = dict(file)
        refuse_no_numbers(np, held)
        inputs = {one["name"]: held[f"input_{index}"] for index, one in enumerate(about["inputs"])}
        try:
            for _ in range(CALLS):
                started = time.perf_counter()
                outputs = session.run(names, inputs)
                taken.append((time.perf_counter() - started) * 1e3)
        except Exception as error:  # noqa: BLE001 - in its own words
            failed = True
            print(f"{name}: failed: {' '.join(str(error).split())}")
            continue
        why, worst, squares = "", 0.0, []
        for index, actual in enumerate(outputs):
            bound = held.get(f"bound_{index}")
            wrong, ratio = judge(np, actual, about["outputs"][index]["dtype"], held[f"value_{index}"], bound)
            why, worst = why or (f"{names[index]}: {wrong}" if wrong else ""), max(worst, ratio)
            if f"deviation_{index}" in held and not wrong:
                deviation = held[f"deviation_{index}"]
                squares.append(
                    squares_of(np, actual, held[f"value_{index}"], deviation, float(held["floor"]))
                )
        if squares and not why:
            every = np.concatenate(squares)
            rms, largest = (
                float(np.sqrt(every.mean())) if every.size else 0.0,
                float(np.sqrt(every.max(initial=0.0))),
            )
            if rms > held["limits"][0] or largest > held["limits"][1]:
                why = f"RMS z {rms:.3g} and max |z| {largest:.3g}; correct implementations stay below {held['limits'][0]:.3g} and {held['limits'][1]:.3g}"
        failed = failed or bool(why)
        told = f"failed: {why}" if why else "passed"
        if not why and "limits" not in held and not all_bounded(np, held):
            told, unbounded = "inconclusive: elements without a bound, and no limit of noise for them", True
        print(f"{name}: {told}, largest error {worst:.3g} of its bound, end to end")
    if taken:
        print(f"a call takes {np.median(taken):.3g} ms, median of {len(taken)} over all sets")
    nodes = None
    if options.enable_profiling:
        nodes = nodes_by_provider(session.end_profiling())
        print(f"nodes: {', '.join(f'{count} on {name}' for name, count in nodes.items()) or 'none'}")
    if failed:
        return 1
    if nodes is not None and provider not in nodes:
        print(f"replay: {provider} ran none of the nodes: nothing is proven of it", file=sys.stderr)
        return 3
    return 3 if about["unverified"] or unbounded or not about["data"] else 0


if __name__ == "__main__":
    sys.exit(main())
