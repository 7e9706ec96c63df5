"""The process that peak memory is measured in, see `verify.peak`: one JSON request a line on stdin, one answer a line on stdout.

Linux keeps the largest resident size of each process, and lets a process set it back to what it holds now: the
difference over one call is what that call held at once, beyond the session and the inputs.
"""

from __future__ import annotations

import gc
from dataclasses import replace
from pathlib import Path

import msgspec

from onnx_attest.export.artifact import read_artifact
from onnx_attest.verify.cases import make_inputs
from onnx_attest.verify.records import CaseRecord, Verdict
from onnx_attest.verify.runtimes.base import Clocked, Placement, UnavailableError
from onnx_attest.verify.runtimes.isolated import to_be_timed
from onnx_attest.verify.runtimes.registry import select
from onnx_attest.verify.workers.streams import one_line, private_streams

_OWN = Path("/proc/self")
_RESET = "5"
"""Written to clear_refs, it sets the peak back to the present size (man 5 proc_pid_clear_refs)."""
_KIB = 1024
_SMALL = 16
"""Size of the call before the measured one: threads, code and tables that any first call needs are there then."""


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One call to be measured.

    Attributes:
        artifact: path of the ONNX file, with its manifest beside it, which says what the inputs are.
        trusted: see `Artifact`.
        axes: size of every symbolic axis.
    """

    job: int
    runtime: str
    threads: int
    artifact: str
    trusted: bool = False
    axes: dict[str, int]
    seed: int = 0


class Answer(msgspec.Struct, kw_only=True):
    """What came of it; `peak_bytes` is what the call held at once beyond what was there before, None if not measured."""

    job: int
    verdict: Verdict = "errored"
    reason: str = ""
    peak_bytes: int | None = None


def main() -> None:
    """Answer the requests on stdin until there are no more."""
    requests, answers = private_streams()
    decoder = msgspec.json.Decoder(Request)
    for line in requests:
        answers.write(msgspec.json.encode(answer_to(decoder.decode(line))) + b"\n")
        answers.flush()


def answer_to(request: Request) -> Answer:
    """Return the peak, or why there is none: `skipped` if it cannot be seen here, `errored` if anything raises."""
    try:
        return Answer(job=request.job, verdict="passed", peak_bytes=_peak_bytes(request))
    except UnavailableError as refusal:
        return Answer(job=request.job, verdict="skipped", reason=one_line(str(refusal)))
    except Exception as error:  # noqa: BLE001 - a runtime may raise anything; it is recorded, not hidden
        return Answer(job=request.job, reason=one_line(f"{type(error).__name__}: {error}"))


def _peak_bytes(request: Request) -> int:
    runtime = to_be_timed(*select((request.runtime,)))
    artifact = replace(read_artifact(Path(request.artifact)), trusted=request.trusted)
    assert artifact.manifest is not None  # `verify.peak` measures exports of this package only
    contract = artifact.manifest.contract
    session = runtime.open(artifact, threads=request.threads)
    if isinstance(session, Clocked):
        raise UnavailableError("it computes in another process, whose memory is not measured")
    _refuse_device(session.placement)
    small, given = (
        make_inputs(contract, CaseRecord(name="memory", axes=axes, seed=request.seed))
        for axes in ({axis: min(size, _SMALL) for axis, size in request.axes.items()}, request.axes)
    )
    session.run(small)
    gc.collect()
    before = _set_back()
    outputs = session.run(given)
    peak = _status_bytes("VmHWM")
    del outputs
    return max(peak - before, 0)


def _refuse_device(placement: Placement) -> None:
    """Refuse a session whose tensors are in a device's memory.

    Raises:
        UnavailableError: see above.
    """
    if any("cuda" in where.lower() or "gpu" in where.lower() for where in placement.used):
        raise UnavailableError("it computes in the memory of a device, which is not measured")


def _set_back() -> int:
    """Set the peak back to what is held now, and return that, in bytes.

    Raises:
        UnavailableError: this system has no such thing.
    """
    try:
        (_OWN / "clear_refs").write_text(_RESET)
    except OSError as error:
        raise UnavailableError(f"this system does not tell the peak of one call: {error.strerror}") from error
    return _status_bytes("VmRSS")


def _status_bytes(name: str) -> int:
    """Return a line of /proc/self/status that is given in kB."""
    lines = (_OWN / "status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:")) * _KIB


if __name__ == "__main__":
    main()
