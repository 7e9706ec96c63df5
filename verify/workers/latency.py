"""The process that latency is measured in, see `verify.latency`: one JSON request a line on stdin, one JSON answer a line on stdout.

Requirements:
* a runtime's package is imported only when a request names that runtime;
* no more than one session is open at a time;
* nothing that a library prints reaches the parent as an answer;
* every request is answered, unless the process itself dies.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter_ns
from typing import Any, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from onnx_attest.errors import UsageError
from onnx_attest.export.artifact import read_artifact
from onnx_attest.verify.records import Verdict
from onnx_attest.verify.runtimes.base import Clocked, Session, Tensors, UnavailableError
from onnx_attest.verify.runtimes.isolated import to_be_timed
from onnx_attest.verify.runtimes.registry import select
from onnx_attest.verify.workers.streams import one_line, private_streams

_NANOSECONDS = 1e9
_Result = TypeVar("_Result")


@dataclass(frozen=True)
class LatencyBudget:
    """How often a job is timed.

    Attributes:
        warm_up_calls: calls after the first one whose time is thrown away.
        minimum_samples: taken even if they need longer than `seconds`.
        maximum_samples: not exceeded even if there is time left.
        seconds: no further sample is started after this time of sampling.

    Raises:
        UsageError: no sample would be taken.
    """

    warm_up_calls: int = 3
    minimum_samples: int = 10
    maximum_samples: int = 200
    seconds: float = 0.25

    def __post_init__(self) -> None:
        """Refuse a budget that measures nothing."""
        if self.warm_up_calls < 0 or not 1 <= self.minimum_samples <= self.maximum_samples:
            raise UsageError(
                f"a latency budget needs warm_up_calls >= 0 and 1 <= minimum_samples <= maximum_samples, got {self}"
            )


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One job.

    Attributes:
        artifact: path of the ONNX file; its manifest, if it has one, lies beside it.
        trusted: the asking process wrote the manifest, or was told to run the module it names.
        inputs: path of an .npz with the inputs as arr_0, arr_1, ... in the order of `names`: a tensor may have
            a name that is no keyword of `numpy.savez`.
        dtypes: in the same order; .npz forgets those of ml_dtypes.
    """

    job: int
    runtime: str
    threads: int
    artifact: str
    trusted: bool = False
    inputs: str
    names: tuple[str, ...]
    dtypes: tuple[str, ...]
    budget: LatencyBudget


class Answer(msgspec.Struct, kw_only=True):
    """What came of a job. Filled step by step, so that what was known before an error is kept."""

    job: int
    verdict: Verdict = "errored"
    reason: str = ""
    runtime_version: str = "unknown"
    provider_used: tuple[str, ...] = ()
    session_s: float | None = None
    first_call_s: float | None = None
    warm_up_calls: int = 0
    latency_s: tuple[float, ...] = ()


def main() -> None:
    """Answer the requests on stdin until there are no more."""
    requests, answers = private_streams()
    decoder = msgspec.json.Decoder(Request)
    for line in requests:
        answers.write(msgspec.json.encode(answer_to(decoder.decode(line))) + b"\n")
        answers.flush()


def answer_to(request: Request) -> Answer:
    """Return the timings, or why there are none: `skipped` if the runtime refuses, `errored` if anything raises."""
    answer = Answer(job=request.job)
    try:
        _measure(request, answer)
        answer.verdict = "passed"
    except UnavailableError as refusal:
        answer.verdict, answer.reason = "skipped", one_line(str(refusal))
    except Exception as error:  # noqa: BLE001 - a runtime may raise anything; it is recorded, not hidden
        answer.reason = one_line(f"{type(error).__name__}: {error}")
    return answer


def take_samples(session: Session, inputs: Tensors, budget: LatencyBudget) -> tuple[float, ...]:
    """Return the seconds that each call of `session.run` took."""
    stop = perf_counter_ns() + budget.seconds * _NANOSECONDS
    samples: list[float] = []
    while len(samples) < budget.minimum_samples or (
        len(samples) < budget.maximum_samples and perf_counter_ns() < stop
    ):
        samples.append(_call_s(session, inputs))
    return tuple(samples)


def _measure(request: Request, answer: Answer) -> None:
    runtime = to_be_timed(*select((request.runtime,)))
    # This imports the runtime's package, which is not part of what a session costs.
    # A plain string: torch's version is of a class of its own, which JSON has no word for.
    answer.runtime_version = str(runtime.availability().version)
    artifact = replace(read_artifact(Path(request.artifact)), trusted=request.trusted)
    inputs = _load_inputs(request)
    session, answer.session_s = _timed(lambda: runtime.open(artifact, threads=request.threads))
    answer.provider_used = session.placement.used
    answer.reason = session.placement.elsewhere()  # its time is in part another provider's
    with _no_garbage_collection():
        answer.first_call_s = _call_s(session, inputs)
        for _ in range(request.budget.warm_up_calls):
            session.run(inputs)
            answer.warm_up_calls += 1
        answer.latency_s = take_samples(session, inputs, request.budget)


def _call_s(session: Session, inputs: Tensors) -> float:
    start = perf_counter_ns()
    outputs = session.run(inputs)
    end = perf_counter_ns()
    # Freed before the next call, as a server would, but not on this call's clock.
    del outputs
    if isinstance(session, Clocked):
        return session.last_call_s
    return (end - start) / _NANOSECONDS


def _timed(call: Callable[[], _Result]) -> tuple[_Result, float]:
    start = perf_counter_ns()
    result = call()
    return result, (perf_counter_ns() - start) / _NANOSECONDS


@contextlib.contextmanager
def _no_garbage_collection() -> Iterator[None]:
    was_enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _load_inputs(request: Request) -> Tensors:
    with np.load(request.inputs) as file:
        arrays = [file[f"arr_{index}"] for index in range(len(request.names))]
    typed = [_with_dtype(array, dtype) for array, dtype in zip(arrays, request.dtypes, strict=True)]
    return dict(zip(request.names, typed, strict=True))


def _with_dtype(array: NDArray[Any], name: str) -> NDArray[Any]:
    if array.dtype.name == name:
        return array
    # Makes numpy know bfloat16 and its kin by name. Late, because this import alone takes half a second.
    import ml_dtypes  # noqa: F401

    return array.view(np.dtype(name))


if __name__ == "__main__":
    main()
