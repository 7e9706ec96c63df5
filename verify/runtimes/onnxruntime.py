"""ONNX Runtime: a provider is data, a name and its options; placement is asked of the session and of each node."""

from __future__ import annotations

import ctypes
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from onnx_attest.errors import UsageError
from onnx_attest.export.session_options import set_option
from onnx_attest.verify.arithmetic import OF_DTYPE
from onnx_attest.verify.runtimes.base import (
    Availability,
    Placement,
    Session,
    Tensors,
    UnavailableError,
    as_arrays,
)
from onnx_attest.verify.runtimes.model_file import ModelFile
from onnx_attest.verify.runtimes.ort_placement import placement_of, refuse_fallback, with_copies
from onnx_attest.verify.runtimes.ort_providers import plugin_devices, plugin_version, why_no_plugin, why_not

if TYPE_CHECKING:
    import onnxruntime as ort

    from onnx_attest.export.artifact import Artifact

_CPU = "CPUExecutionProvider"
_CUDA = "CUDAExecutionProvider"
CUSTOM_OPERATORS = "custom_operators"
"""In the details of a placement: the libraries of operators that its session was opened with."""
_HOST = "cpu"
"""The device of ONNX Runtime whose memory is the host's."""
_INSTALL = "onnx-attest[cpu] or onnx-attest[cuda], not both"
# Errors reach us as exceptions; ORT's own log would say them a second time on stderr.
_FATAL_ONLY = 4
_LARGE = (
    2**27
)  # bytes of a tensor from which on it is kept beside an optimised graph, which has to stay below 2 GiB
_BESIDE = "session.model_external_initializers_file_folder_path"
_BFLOAT16, _BFLOAT16_TENSOR = 16, "tensor(bfloat16)"
"""ONNX's number of the type, and ONNX Runtime's name of a tensor of it."""


@dataclass(frozen=True)
class OrtRuntime:
    """One provider of ONNX Runtime with its options.

    Attributes:
        optimise: whether ORT's graph optimisations are on, as they are by default.
        profiles: the arithmetic for each dtype of a graph.
        disabled: passes of the optimiser that are switched off.
        session_options: of the session that the user runs, see `set_option`.
        custom_operators: libraries of operators to register.
        library: of a plugin provider: a file, or a module with a `get_library_path`; "" for one that ORT has built in.
        install: what brings the provider, where that is known.
        reference: what `registry.select` takes to give this runtime again, where that is not its name.
    """

    name: str = "ort-cpu"
    provider: str = _CPU
    provider_options: Mapping[str, str] = field(default_factory=dict)
    optimise: bool = True
    profiles: Mapping[str, str] = field(default_factory=lambda: OF_DTYPE)
    disabled: tuple[str, ...] = ()
    session_options: Mapping[str, str] = field(default_factory=dict)
    custom_operators: tuple[str, ...] = ()
    library: str = ""
    install: str = ""
    reference: str = ""

    def arithmetic(self, dtype: str) -> str:
        """Return the declared profile; on a CPU, ORT computes most of a half-precision graph in fp32, with casts."""
        return self.profiles[dtype]

    def holds_scores(self, operator: str, *, hidden: bool) -> bool:
        """Whether all scores of a fused attention are held at once; `hidden`: a mask or a position hides keys.

        Seen in the resident size of 1.31 at 8,192 tokens: com.microsoft's operators go by blocks where nothing is hidden,
        GroupQueryAttention always.
        """
        if self.provider != _CPU:
            return False
        return operator == "Attention" or (hidden and operator == "com.microsoft.MultiHeadAttention")

    def availability(self) -> Availability:
        """Say whether the provider's library loads here, in the loader's words if it does not."""
        try:
            import onnxruntime
        except ImportError as error:
            return Availability(False, reason=str(error), install=_INSTALL)
        version = onnxruntime.__version__
        if self.library:
            reason = why_no_plugin(self.provider, self.library)
            version += "" if reason else f", plugin {plugin_version(self.provider, self.library)}"
        else:
            reason = why_not(self.provider)
        return Availability(not reason, version, reason, self._remedy() if reason else "")

    def _remedy(self) -> str:
        if self.install:
            return self.install
        if self.library:
            return f"the package or file {self.library}"
        return f"a build of ONNX Runtime with {self.provider}"

    def open(self, artifact: Artifact, *, model: bytes | None = None, threads: int | None = None) -> Session:
        """Return a session that runs on this provider, or raise `UnavailableError`."""
        self.availability().demand()
        options = self._options(threads)
        if model is not None:  # tensors beside the file are beside its copies too
            options.add_session_config_entry(_BESIDE, str(artifact.path.parent))
        try:
            session = self._session(str(artifact.path) if model is None else model, options)
        except _not_implemented() as error:  # no kernel for an operator or a dtype: its own refusal
            raise UnavailableError(" ".join(str(error).split())) from error
        if self.provider == _CUDA:
            _refuse_bfloat16(session)
        placement = placement_of(session, self.provider, lambda: ModelFile.of(artifact, model))
        placement = replace(placement, details=self._libraries(), session_options=dict(self.session_options))
        refuse_fallback(placement, self.provider)
        if self.provider == _CUDA and placement.elsewhere():
            placement = with_copies(
                placement, lambda folder: self.rewritten(artifact, folder, threads=threads)
            )
        return OrtSession(session, placement, device="cuda" if self.provider == _CUDA else _HOST)

    def _libraries(self) -> dict[str, str]:
        names = ", ".join(Path(library).name for library in self.custom_operators)
        return {CUSTOM_OPERATORS: names} if names else {}

    def _session(self, source: str | bytes, options: ort.SessionOptions) -> ort.InferenceSession:
        """Return a session on the provider; ORT gives one on the CPU, without an exception, if that does not start."""
        import onnxruntime

        kinds: dict[str, Any] = {"disabled_optimizers": list(self.disabled)}
        # Else a run that fails on CUDA is repeated on the CPU, with a print.
        kinds["enable_fallback"] = 0
        if self.library:
            options.add_provider_for_devices(
                plugin_devices(self.provider, self.library), dict(self.provider_options)
            )
        else:
            kinds["providers"] = [(self.provider, dict(self.provider_options))]
        return onnxruntime.InferenceSession(source, options, **kinds)

    def rewritten(self, artifact: Artifact, folder: Path, *, threads: int | None = None) -> Path:
        """Write the graph that ONNX Runtime's optimiser makes of the file, with fused nodes and other layouts.

        Raises:
            Exception: whatever ONNX Runtime raises when it opens the file.
        """
        options, path = self._options(threads), folder / "rewritten.onnx"
        options.optimized_model_filepath = str(path)
        options.add_session_config_entry(
            "session.optimized_model_external_initializers_file_name", "weights.bin"
        )
        options.add_session_config_entry(
            "session.optimized_model_external_initializers_min_size_in_bytes", str(_LARGE)
        )
        self._session(str(artifact.path), options)
        return path

    def as_written(self) -> OrtRuntime:
        """Return the same without optimisations."""
        return replace(self, optimise=False)

    def without(self, passes: Sequence[str]) -> OrtRuntime:
        """Return the same without some passes of the optimiser."""
        return replace(self, disabled=tuple(passes))

    def _options(self, threads: int | None) -> ort.SessionOptions:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = _FATAL_ONLY
        if threads is None:
            # Nothing is timed: idle threads that spin would take the cores from torch in the same process.
            options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        else:
            options.intra_op_num_threads = threads
        for library in self.custom_operators:
            options.register_custom_ops_library(library)
        for key, value in self.session_options.items():
            set_option(options, key, value)
        if not self.optimise:
            options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
        return options


def unoptimised() -> OrtRuntime:
    """Return the CPU provider without graph optimisations: the file as it is written."""
    return OrtRuntime("ort-cpu-noopt", optimise=False)


_CUDA_INSTALL = "onnx-attest[torch,cuda]: torch's CUDA build brings the CUDA libraries"


def cuda() -> OrtRuntime:
    """Return CUDA in fp32; ORT computes fp32 products in TF32 unless told otherwise."""
    return OrtRuntime("ort-cuda", _CUDA, {"use_tf32": "0"}, install=_CUDA_INSTALL)


def cuda_tf32() -> OrtRuntime:
    """Return CUDA as ORT runs it by default: another arithmetic, so another runtime."""
    profiles = {**OF_DTYPE, "float32": "tf32"}
    return OrtRuntime("ort-cuda-tf32", _CUDA, {"use_tf32": "1"}, profiles=profiles, install=_CUDA_INSTALL)


def nxrt() -> OrtRuntime:
    """Return a plugin provider of PyPI that runs on any CPU: it takes some nodes and leaves others."""
    return OrtRuntime("ort-nxrt", "cpu_ep", library="nxrt_ep_cpu", install="onnx-attest[plugin]")


def provider(reference: str) -> OrtRuntime:
    """Return the runtime that `ort:PROVIDER[@LIBRARY][,key=value...]` names; a file's folder is left out of its name.

    Raises:
        UsageError: no provider is named, or an option is no `key=value`.
    """
    head, *pairs = reference.removeprefix("ort:").split(",")
    name, at, library = head.partition("@")
    options = dict(pair.partition("=")[::2] for pair in pairs)
    if not name or (at and not library) or not all("=" in pair and pair[0] != "=" for pair in pairs):
        raise UsageError(
            f"{reference!r} is no provider: give ort:PROVIDER or ort:PROVIDER@LIBRARY, then ,key=value"
        )
    shown = ",".join([f"ort:{name}{at}{Path(library).name}", *pairs])
    return OrtRuntime(shown, name, options, library=library, reference=reference)


def refuse_unknown_options(options: Mapping[str, str]) -> None:
    """Refuse what no session takes, before one is opened; without ONNX Runtime there is nobody to ask.

    Raises:
        UsageError: see `set_option`.
    """
    try:
        import onnxruntime
    except ImportError:
        return
    trial = onnxruntime.SessionOptions()
    for key, value in options.items():
        set_option(trial, key, value)


class OrtSession:
    """A session of ONNX Runtime. On CUDA the outputs are bound to the device, and it is checked that they are there."""

    def __init__(self, session: ort.InferenceSession, placement: Placement, device: str) -> None:
        self.placement = placement
        self._session = session
        self._device = device
        self._outputs = [output.name for output in session.get_outputs()]
        kinds = {one.type for one in (*session.get_inputs(), *session.get_outputs())}
        self._takes_or_gives_bfloat16 = _BFLOAT16_TENSOR in kinds

    def run(self, inputs: Mapping[str, NDArray[Any]]) -> Tensors:
        """Return the outputs by name, on the host."""
        if self._device != _HOST:
            return self._run_bound(inputs)
        if self._takes_or_gives_bfloat16:
            held = {
                name: np.ascontiguousarray(array) for name, array in inputs.items()
            }  # values only point to them
            values = self._session.run_with_ort_values(self._outputs, _as_values(held))
            return as_arrays(self._outputs, [_as_array(value) for value in values])
        return as_arrays(self._outputs, self._session.run(self._outputs, dict(inputs)))

    def on_device(self, inputs: Mapping[str, NDArray[Any]]) -> OrtBound | None:
        """Return a call with inputs and outputs bound to the device, None on the CPU."""
        return None if self._device == _HOST else OrtBound(self._session, inputs, self._outputs, self._device)

    def _run_bound(self, inputs: Mapping[str, NDArray[Any]]) -> Tensors:
        binding = self._session.io_binding()
        for name, value in inputs.items():
            binding.bind_cpu_input(name, value)
        for name in self._outputs:
            binding.bind_output(name, self._device)
        self._session.run_with_iobinding(binding)
        values = binding.get_outputs()
        devices = {value.device_name() for value in values}
        if devices != {self._device}:
            raise UnavailableError(
                f"outputs came back on {', '.join(sorted(devices))}, not on {self._device}"
            )
        return as_arrays(self._outputs, [value.numpy() for value in values])


class OrtBound:
    """A call whose inputs are values on a device, and whose outputs are left there.

    Attributes:
        copied_in_s: seconds that the inputs took to get there.
    """

    def __init__(
        self,
        session: ort.InferenceSession,
        inputs: Mapping[str, NDArray[Any]],
        outputs: Sequence[str],
        device: str,
    ) -> None:
        from onnxruntime import OrtValue

        self._session, self._binding = session, session.io_binding()
        start = time.perf_counter()
        held = {
            name: OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array), device, 0)
            for name, array in inputs.items()
        }
        for name, value in held.items():
            self._binding.bind_ortvalue_input(name, value)
        for name in outputs:
            self._binding.bind_output(name, device)
        self._binding.synchronize_inputs()
        self.copied_in_s = time.perf_counter() - start
        self._held = held  # the binding only points to them

    def run(self) -> None:
        """Compute the outputs, and wait for the device."""
        self._session.run_with_iobinding(self._binding)
        self._binding.synchronize_outputs()

    def copied_out_s(self) -> float:
        """Copy the outputs of the last run to the host; return the seconds that it took."""
        start = time.perf_counter()
        self.outputs()
        return time.perf_counter() - start

    def outputs(self) -> list[NDArray[Any]]:
        """Return the outputs of the last run, on the host."""
        return list(self._binding.copy_outputs_to_cpu())


def _as_values(inputs: Mapping[str, NDArray[Any]]) -> dict[str, ort.OrtValue]:
    """Return arrays as ONNX Runtime's own values: `run` takes no bfloat16 from NumPy, a value of its bits can be made."""
    from onnxruntime import OrtValue

    return {
        name: OrtValue.ortvalue_from_numpy_with_onnx_type(array.view(np.uint16), _BFLOAT16)
        if array.dtype.name == "bfloat16"
        else OrtValue.ortvalue_from_numpy(array)
        for name, array in inputs.items()
    }


def _as_array(value: ort.OrtValue) -> NDArray[Any]:
    """Return a value on the host as an array; a bfloat16 one is read from its memory, since `numpy` knows no such type."""
    if value.data_type() != _BFLOAT16_TENSOR:
        return np.asarray(value.numpy())
    import ml_dtypes

    shape = tuple(value.shape())
    size = math.prod(shape)
    bits = (
        np.array((ctypes.c_uint16 * size).from_address(value.data_ptr())) if size else np.zeros(0, np.uint16)
    )
    return np.asarray(bits.view(ml_dtypes.bfloat16).reshape(shape))


def _not_implemented() -> type[Exception]:
    from onnxruntime.capi.onnxruntime_pybind11_state import NotImplemented as Refusal

    return Refusal  # type: ignore[no-any-return]


def _refuse_bfloat16(session: ort.InferenceSession) -> None:
    for value in (*session.get_inputs(), *session.get_outputs()):
        if value.type == _BFLOAT16_TENSOR:
            raise UnavailableError(
                f"{value.name} is bfloat16, which ONNX Runtime's Python interface neither binds to a device nor gives back"
            )
