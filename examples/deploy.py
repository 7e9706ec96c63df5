"""Serve a file only if it was verified: exactly these bytes, on this runtime, in this version of it.

    python deploy.py attention.onnx report inputs.npz outputs.npz

Needs ONNX Runtime and NumPy where it runs, and neither torch nor onnx-attest: `report` is a folder that
`onnx-attest verify attention.onnx -o report` has written. `onnx-attest deploy` writes a bundle with more: test data,
and a replay on the target.

Change: RUNTIME and PROVIDERS, which must mean the same session. Session options that you set here were verified only
if they were given to `onnx-attest verify --session-option` too. The digest is that of the file alone; a model with
weights in files of their own cannot be loaded from bytes, and is refused by ONNX Runtime.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
import onnxruntime

RUNTIME, PROVIDERS = "ort-cpu", ["CPUExecutionProvider"]
JUDGED = ("cell", "stability", "relation")


class NotVerifiedError(Exception):
    """The file may not be served; the message says why."""


def load_verified(path: Path, report: Path) -> onnxruntime.InferenceSession:
    """Return a session of the very bytes that were verified.

    Raises:
        NotVerifiedError: the report is not about these bytes on this runtime, or is not good news.
    """
    data = path.read_bytes()  # once: what is checked is what is loaded
    refuse_unverified(hashlib.sha256(data).hexdigest(), report)
    return onnxruntime.InferenceSession(data, providers=PROVIDERS)


def refuse_unverified(sha256: str, report: Path) -> None:
    """Raise unless the records say that a file of this digest passed on RUNTIME.

    Raises:
        NotVerifiedError: they do not; the message says why.
    """
    records = [json.loads(line) for line in (report / "records.jsonl").read_text().splitlines()]
    if not records or records[-1]["kind"] != "run":
        raise NotVerifiedError("the verification did not reach its end")
    if records[-1]["part"]:
        raise NotVerifiedError(f"it is not the whole verification: {records[-1]['part']}")
    mine = [record for record in records if record.get("artifact_sha256") == sha256]
    mine = [record for record in mine if record["kind"] in JUDGED and record["runtime"] == RUNTIME]
    # A failure that is known, to known.toml, is still one: it is for you to say whether you can live with it.
    bad = [record for record in mine if record["verdict"] in ("failed", "errored")]
    if bad:
        raise NotVerifiedError(
            f"it {bad[0]['verdict']} on {RUNTIME}: {bad[0]['reason'] or bad[0]['findings']}"
        )
    passed = [record for record in mine if record["kind"] == "cell" and record["verdict"] == "passed"]
    if not passed:
        raise NotVerifiedError(f"no case of a file with the digest {sha256} passed on {RUNTIME}")
    if any(record["session_options"] for record in passed):
        raise NotVerifiedError(f"verified with {passed[0]['session_options']}, and none are set here")
    if records[-1]["exit_code"] != 0:
        raise NotVerifiedError(f"the run as a whole is {records[-1]['verdict']}: {records[-1]['reason']}")
    versions = {record["runtime_version"] for record in passed}
    if versions != {onnxruntime.__version__}:
        raise NotVerifiedError(f"verified on {', '.join(versions)}; this is {onnxruntime.__version__}")


def main(path: Path, report: Path, inputs: Path, outputs: Path) -> int:
    """Run the file on inputs of a file, and write the outputs."""
    try:
        session = load_verified(path, report)
        names = [output.name for output in session.get_outputs()]
        with np.load(inputs) as given:
            results = session.run(names, dict(given))
        np.savez(outputs, **dict(zip(names, results, strict=True)))
    except (NotVerifiedError, OSError, ValueError, BadZipFile) as error:
        print(f"not served: {' '.join(str(error).split())}", file=sys.stderr)
        return 1
    print(f"served on {', '.join(session.get_providers())}: {', '.join(names)}")
    return 0


if __name__ == "__main__":
    if len(sys.argv) != 5:
        print(__doc__, file=sys.stderr)
        sys.exit(2)
    sys.exit(main(*map(Path, sys.argv[1:])))
