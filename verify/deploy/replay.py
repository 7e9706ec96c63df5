"""A bundle on the machine that it is for: its digests, then its test data, against the bounds that it brings along."""

from __future__ import annotations

import math
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from onnx_attest.errors import UsageError
from onnx_attest.export.artifact import Artifact
from onnx_attest.export.bundle import REFERENCE, Bundle, Tensor, load
from onnx_attest.verify.arithmetic import PROFILES, Arithmetic, profile
from onnx_attest.verify.environment import command_line, environment
from onnx_attest.verify.findings import Finding, finding
from onnx_attest.verify.gates import judge
from onnx_attest.verify.noise import Noise, bits_of, noise_of, too_loud
from onnx_attest.verify.oracle.bounded import Bounded
from onnx_attest.verify.outcome import conclude
from onnx_attest.verify.records import (
    AnyRecord,
    CaseRecord,
    CellRecord,
    FindingRecord,
    RunRecord,
    Verdict,
    finite,
)
from onnx_attest.verify.runtimes.base import Runtime, Session, Tensors, UnavailableError
from onnx_attest.verify.runtimes.broken import BrokenRuntime
from onnx_attest.verify.runtimes.isolated import isolate, processes_of
from onnx_attest.verify.runtimes.registry import reference_of, select, with_session
from onnx_attest.verify.verdicts import exit_code


def replay(
    folder: Path,
    runtimes: Sequence[str] = (),
    *,
    required: Sequence[str] = (),
    latency: bool = False,
    on_step: Callable[[str], None] = lambda step: None,
) -> list[AnyRecord]:
    """Return the records of a bundle's test data on runtimes of this machine.

    Args:
        folder: of the bundle.
        runtimes: as `select` takes them; those that it was verified on if none is named.
        required: runtimes without which nothing is proven; added to those.
        latency: time those that are right here, on the largest set; takes about a second for each.
        on_step: told what comes next.

    Raises:
        TamperedError: a byte of the bundle is not what it was; the file is named.
        UsageError: it is no bundle.
    """
    started = time.monotonic()
    on_step("checking the digests")
    bundle = load(folder)
    _refuse_unknown(bundle)
    sets = [(name, *_read(bundle, name)) for name in bundle.about.data]
    asked = select(tuple(dict.fromkeys((*runtimes, *required)))) if runtimes or required else ()
    chosen = isolate(_as_verified(asked if runtimes else (*_of(bundle, asked), *asked), bundle))
    with processes_of(chosen):
        records: list[AnyRecord] = [environment(chosen, command_line())]
        for runtime in chosen:
            on_step(f"replaying on {runtime.name}")
            records += _on(runtime, bundle, sets)
    if latency:
        records += _timed(bundle, chosen, records, sets, on_step)
    if bundle.about.unverified:
        records.append(_finding_record(bundle, finding("OA811", bundle.about.unverified), ""))
    end = conclude(records, required=required, duration_s=time.monotonic() - started)
    return [*records, *(_unproven(one, bundle.about.unverified) for one in end)]


def _of(bundle: Bundle, asked: Sequence[Runtime]) -> Iterator[Runtime]:
    """Yield the runtimes that a bundle was verified on, but for those that are asked for besides."""
    names = [one.runtime for one in bundle.about.verified] or ["ort-cpu"]
    for name in dict.fromkeys(names):
        try:
            (runtime,) = select((name,))
        except UsageError as error:  # the configuration that has it is on another machine; it is told, like one that is absent
            runtime = BrokenRuntime(name, str(error).partition(";")[0])
        if runtime.name not in {one.name for one in asked}:
            yield runtime


def _as_verified(runtimes: Sequence[Runtime], bundle: Bundle) -> tuple[Runtime, ...]:
    """Return the runtimes with the session options that the bundle's file was verified with on them."""
    options = {one.runtime: one.session_options for one in bundle.about.verified}
    return tuple(one for each in runtimes for one in with_session((each,), options.get(each.name, {}), ()))


def _refuse_unknown(bundle: Bundle) -> None:
    """Refuse an arithmetic or dtype that there is not, before anything runs.

    Raises:
        UsageError: it is named.
    """
    profile(bundle.about.arithmetic)
    for one in (*bundle.about.inputs, *bundle.about.outputs):
        try:
            known = _dtype(one.dtype).kind in _NUMBERS or one.dtype in _SHORT
        except (TypeError, ValueError, SyntaxError):  # NumPy reads a dtype's name as a small language
            known = False
        if not known:
            raise UsageError(f"{bundle.folder}: {one.name} has the unknown dtype {one.dtype!r}")


def _timed(
    bundle: Bundle,
    chosen: Sequence[Runtime],
    records: Sequence[AnyRecord],
    sets: Sequence[tuple[str, Tensors, dict[str, Bounded], Noise | None]],
    on_step: Callable[[str], None],
) -> Iterator[AnyRecord]:
    """Yield the timings of the runtimes that passed, which needs ONNX's own package."""
    from onnx_attest.verify.latency.measure import LatencyJob, measure
    from onnx_attest.verify.pool import cores

    right = {one.runtime for one in records if isinstance(one, CellRecord) and one.verdict == "passed"}
    names = [reference_of(runtime) for runtime in chosen if runtime.name in right]
    if not names or not sets:
        return
    largest = max((inputs for _, inputs, _, _ in sets), key=lambda one: sum(x.nbytes for x in one.values()))
    artifact = Artifact(bundle.model, bundle.about.sha256)
    job = LatencyJob(artifact, _axes(bundle.about.inputs, largest), largest, bundle.about.model)
    yield from measure(names, [job], threads=cores(), on_step=on_step)


def _unproven(record: AnyRecord, why: str) -> AnyRecord:
    """Return the end of a run that passed as inconclusive, if the bundle proves nothing."""
    if not why or not isinstance(record, RunRecord) or record.verdict != "passed":
        return record
    reason = f"the bundle was made by force: {why}"
    return msgspec.structs.replace(
        record, verdict="inconclusive", reason=reason, exit_code=exit_code("inconclusive")
    )


def _on(
    runtime: Runtime, bundle: Bundle, sets: Sequence[tuple[str, Tensors, dict[str, Bounded], Noise | None]]
) -> Iterator[AnyRecord]:
    artifact = Artifact(bundle.model, bundle.about.sha256)
    available = runtime.availability()
    try:
        available.demand()
        session = runtime.open(artifact)
    except UnavailableError as error:
        yield _cell(bundle, runtime, available.version, None, "skipped", " ".join(str(error).split()))
        return
    except Exception as error:  # noqa: BLE001 - a runtime may raise anything; it is recorded, not hidden
        yield _cell(bundle, runtime, available.version, None, "errored", _one_line(error))
        return
    for name, inputs, outputs, limits in sets:
        case = CaseRecord(name=name, axes=_axes(bundle.about.inputs, inputs))
        try:
            actual = session.run(inputs)
        except Exception as error:  # noqa: BLE001 - as above
            yield _cell(bundle, runtime, available.version, case, "errored", _one_line(error))
            continue
        yield from _judged(bundle, runtime, available.version, session, case, actual, outputs, limits)


def _judged(
    bundle: Bundle,
    runtime: Runtime,
    version: str,
    session: Session,
    case: CaseRecord,
    actual: Tensors,
    outputs: Mapping[str, Bounded],
    limits: Noise | None,
) -> Iterator[AnyRecord]:
    arithmetic = PROFILES[bundle.about.arithmetic]
    dtypes = {one.name: _dtype(one.dtype) for one in bundle.about.outputs}
    judgement = judge(actual, outputs, dtypes)
    found = list(judgement.findings)
    gates: dict[str, dict[str, float | None]] = {
        "proof": {"max_err_over_tau": finite(judgement.max_err_over_tau)}
    }
    bits = None
    if limits is not None and judgement.max_err_over_tau is not None:
        noise = noise_of(actual, outputs, arithmetic)
        bits = bits_of(noise, arithmetic)
        gates["noise"] = {
            "rms_z": finite(noise.rms_z), "rms_z_limit": finite(limits.rms_z), "max_z": finite(noise.max_z),
            "max_z_limit": finite(limits.max_z),
        }  # fmt: skip
        found += _noise_findings(noise, limits, bits, arithmetic)
    verdict: Verdict = "failed" if found else "passed"
    reason = "; ".join(item.message for item in found)
    if not found and judgement.unbounded and limits is None:
        verdict = "inconclusive"
        reason = f"{judgement.unbounded} elements have no bound, and there is no limit of noise for them"
    record = _cell(bundle, runtime, version, case, verdict, reason)
    worst = judgement.worst
    yield msgspec.structs.replace(
        record,
        gates=gates,
        effective_bits=finite(bits),
        max_abs_err=finite(judgement.max_abs_err),
        max_rel_err=finite(judgement.max_rel_err),
        worst_output=worst.output,
        worst_index=worst.index,
        worst_actual=f"{worst.actual:.9g}",
        worst_expected=f"{worst.expected:.9g}",
        provider_requested=session.placement.requested,
        provider_used=session.placement.used,
        nodes_by_provider=session.placement.nodes_by_provider,
        session=session.placement.details,
        session_options=session.placement.session_options,
        findings=tuple(dict.fromkeys(item.code for item in found)),
    )
    yield from (_finding_record(bundle, item, runtime.name, case.id) for item in found)


def _noise_findings(
    noise: Noise, limits: Noise, bits: float | None, arithmetic: Arithmetic
) -> Iterator[Finding]:
    if noise.rms_z > limits.rms_z or noise.max_z > limits.max_z:
        effective = (
            "" if bits is None else f": {bits:.1f} effective bits, {arithmetic.name} has {arithmetic.bits:g}"
        )
        yield finding("OA310", too_loud(noise, limits) + effective)


def _read(bundle: Bundle, name: str) -> tuple[Tensors, dict[str, Bounded], Noise | None]:
    """Return inputs, outputs and limits of a set.

    Raises:
        UsageError: it lacks something, or holds what NumPy would have to unpickle.
    """
    about, path = bundle.about, bundle.folder / name / REFERENCE
    try:
        with zipfile.ZipFile(path) as packed:
            if any(one.compress_type != zipfile.ZIP_STORED for one in packed.infolist()):
                raise ValueError("it is compressed, and no bundle's is")
        with np.load(path) as file:
            held = dict(file)
        inputs = {one.name: _input(held, index, one) for index, one in enumerate(about.inputs)}
        outputs = {one.name: _bounded(held, index) for index, one in enumerate(about.outputs)}
        limits = _limits(held["limits"]) if "limits" in held else None
    except Exception as error:  # of a zip, of NumPy's header, parsed as Python, and of what is not in it
        raise UsageError(
            f"{bundle.folder}: {name}/{REFERENCE} is no test data: {_one_line(error)}"
        ) from error
    return inputs, outputs, limits


def _input(held: Mapping[str, NDArray[Any]], index: int, spec: Tensor) -> NDArray[Any]:
    array = _typed(held[f"input_{index}"], spec.dtype)
    fixed = zip(array.shape, spec.axes, strict=False)
    if array.ndim != len(spec.axes) or any(isinstance(axis, int) and axis != size for size, axis in fixed):
        raise ValueError(f"{spec.name} has the shape {list(array.shape)}, and the axes {list(spec.axes)}")
    return array


def _bounded(held: Mapping[str, NDArray[Any]], index: int) -> Bounded:
    value, error = held[f"value_{index}"], held.get(f"bound_{index}")
    deviation = held.get(f"deviation_{index}")
    for beside in (error, deviation):
        if beside is not None and (beside.shape != value.shape or beside.dtype != np.float64):
            raise ValueError(f"output {index} has {list(value.shape)} values and {list(beside.shape)} bounds")
        # An infinite bound is none, and said to be none; of what is no number there is none either.
        if beside is not None and not (beside >= 0)[np.isfinite(value)].all():
            raise ValueError(f"output {index} has a bound or a deviation that is negative or NaN")
    return Bounded(value, error, variance=None if deviation is None else deviation**2)


def _limits(pair: NDArray[Any]) -> Noise:
    rms_z, max_z = map(float, pair)
    if not (0 <= rms_z < math.inf and max_z >= 0):  # the largest |z| may have no limit
        raise ValueError(f"the limits of noise are {rms_z} and {max_z}")
    return Noise(rms_z, max_z)


def _typed(array: NDArray[Any], name: str) -> NDArray[Any]:
    return array if array.dtype.name == name else array.view(_dtype(name))


_NUMBERS, _SHORT = "fiub", ("bfloat16", "float8_e4m3fn", "float8_e5m2", "int4", "uint4")
"""Kinds of NumPy's own dtypes, and those of ml_dtypes."""


def _dtype(name: str) -> np.dtype[Any]:
    if name in _SHORT:
        import ml_dtypes  # noqa: F401 - it makes NumPy know these by name
    return np.dtype(name)


def _axes(specs: Sequence[Tensor], inputs: Tensors) -> dict[str, int]:
    axes: dict[str, int] = {}
    for spec in specs:
        for axis, size in zip(spec.axes, inputs[spec.name].shape, strict=True):
            if isinstance(axis, str):
                axes.setdefault(axis, size)
    return axes


def _cell(
    bundle: Bundle, runtime: Runtime, version: str, case: CaseRecord | None, verdict: Verdict, reason: str
) -> CellRecord:
    about = bundle.about
    return CellRecord(
        model=about.model, variant="bundle", opset=about.opset, dtype=about.dtype, artifact_sha256=about.sha256,
        runtime=runtime.name, runtime_version=version, case=case, arithmetic=about.arithmetic, verdict=verdict,
        reason=reason,
    )  # fmt: skip


def _finding_record(bundle: Bundle, item: Finding, runtime: str, case: str = "") -> FindingRecord:
    about = bundle.about
    return FindingRecord(
        code=item.code, severity=item.severity, message=item.message, next_step=item.next_step, blame=item.blame,
        model=about.model, variant="bundle", opset=about.opset, dtype=about.dtype, runtime=runtime, case=case,
    )  # fmt: skip


def _one_line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())
