"""ONNX Runtime: a provider is data, a name and its options; placement is asked of the session and of each node."""

from __future__ import annotations

import ctypes
import importlib.metadata
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from onnx_attest.errors import UsageError
from onnx_attest.export.artifact import Artifact
from onnx_attest.verify.arithmetic import OF_DTYPE
from onnx_attest.verify.runtimes.base import (
    Availability,
    Placement,
    Session,
    Tensors,
    UnavailableError,
    as_arrays,
)

if TYPE_CHECKING:
    import onnxruntime as ort

_CPU = "CPUExecutionProvider"
_CUDA = "CUDAExecutionProvider"
# Errors reach us as exceptions; ORT's own log would say them a second time on stderr.
_FATAL_ONLY = 4
_LARGE = (
    2**27
)  # bytes of a tensor from which on it is kept beside an optimised graph, which has to stay below 2 GiB
_BESIDE = "session.model_external_initializers_file_folder_path"
_WARNINGS = 2  # ORT's default
# The smallest model there is, `g (float[1] x) => (float[1] y) { y = Identity (x) }` at opset 18, serialised: a
# process that only runs an artifact needs no onnx to ask a provider whether it works.
_ONE_NODE = bytes.fromhex(
    "08083a390a120a017812017922084964656e746974793a001201675a0f0a0178120a0a08080112040a020801620f0a0179120a0a08"
    "080112040a02080142040a001012"
)


@dataclass(frozen=True)
class OrtRuntime:
    """One provider of ONNX Runtime with its options.

    Attributes:
        optimise: whether ORT's graph optimisations are on, as they are by default.
        profiles: the arithmetic for each dtype of a graph.
        disabled: passes of the optimiser that are switched off.
        session_options: of the session that the user runs, see `set_option`.
        custom_operators: libraries of operators to register.
    """

    name: str
    provider: str = _CPU
    provider_options: Mapping[str, str] = field(default_factory=dict)
    optimise: bool = True
    profiles: Mapping[str, str] = field(default_factory=lambda: OF_DTYPE)
    disabled: tuple[str, ...] = ()
    session_options: Mapping[str, str] = field(default_factory=dict)
    custom_operators: tuple[str, ...] = ()

    def arithmetic(self, dtype: str) -> str:
        """Return the declared profile; on a CPU, ORT computes most of a half-precision graph in fp32, with casts."""
        return self.profiles[dtype]

    def availability(self) -> Availability:
        """Say whether the provider's library loads here, in the loader's words if it does not."""
        try:
            import onnxruntime
        except ImportError as error:
            return Availability(
                False, reason=f"{error}; install onnx-attest[cpu] or onnx-attest[cuda], not both"
            )
        version = onnxruntime.__version__
        if self.provider not in onnxruntime.get_available_providers():
            built = ", ".join(onnxruntime.get_available_providers())
            return Availability(
                False, version, f"this build of ONNX Runtime has no {self.provider}, only {built}"
            )
        reason = _why_not(self.provider)
        return Availability(not reason, version, reason)

    def open(self, artifact: Artifact, *, model: bytes | None = None, threads: int | None = None) -> Session:
        """Return a session that runs on this provider, or raise `UnavailableError`."""
        import onnxruntime

        available = self.availability()
        if not available.usable:
            raise UnavailableError(available.reason)
        options = self._options(threads)
        if model is not None:  # tensors beside the file are beside its copies too
            options.add_session_config_entry(_BESIDE, str(artifact.path.parent))
        try:
            session = onnxruntime.InferenceSession(
                str(artifact.path) if model is None else model,
                options,
                providers=[(self.provider, dict(self.provider_options))],
                disabled_optimizers=list(self.disabled),
                enable_fallback=0,  # else a run that fails on CUDA is repeated on the CPU, with a print
            )
        except _not_implemented() as error:  # no kernel for an operator or a dtype: its own refusal
            raise UnavailableError(" ".join(str(error).split())) from error
        placement = _placement(session, self.provider)
        _refuse_fallback(placement, self.provider)
        return OrtSession(session, placement, device="cuda" if self.provider == _CUDA else "cpu")

    def rewritten(self, artifact: Artifact, folder: Path, *, threads: int | None = None) -> Path:
        """Write the graph that ONNX Runtime's optimiser makes of the file, with fused nodes and other layouts.

        Raises:
            Exception: whatever ONNX Runtime raises when it opens the file.
        """
        import onnxruntime

        options, path = self._options(threads), folder / "rewritten.onnx"
        options.optimized_model_filepath = str(path)
        options.add_session_config_entry(
            "session.optimized_model_external_initializers_file_name", "weights.bin"
        )
        options.add_session_config_entry(
            "session.optimized_model_external_initializers_min_size_in_bytes", str(_LARGE)
        )
        onnxruntime.InferenceSession(
            str(artifact.path),
            options,
            providers=[(self.provider, dict(self.provider_options))],
            disabled_optimizers=list(self.disabled),
        )
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


def set_option(options: ort.SessionOptions, key: str, value: str) -> None:
    """Set a property of SessionOptions by its Python name, or a configuration entry by its dotted one.

    Raises:
        UsageError: no such property, or a value that it does not take.
    """
    import onnxruntime

    if "." in key:
        options.add_session_config_entry(key, value)
        return
    names = [name for name in dir(options) if not name.startswith(("_", "add_", "get_", "register_"))]
    if key not in names:
        raise UsageError(
            f"--session-option: ONNX Runtime has no {key!r}; there are {', '.join(names)}, and dotted ones"
        )
    now = getattr(options, key)
    try:
        setattr(options, key, _as_the_same_kind(onnxruntime, now, value))
    except (TypeError, ValueError, AttributeError) as error:
        raise UsageError(f"--session-option {key}={value}: {' '.join(str(error).split())}") from error


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


def _as_the_same_kind(onnxruntime: Any, now: Any, value: str) -> Any:
    """Return a text as what a property holds: a boolean, a number, one of an enumeration, or text."""
    if isinstance(now, bool):
        if value.lower() not in ("0", "1", "true", "false"):
            raise ValueError("give true or false")
        return value.lower() in ("1", "true")
    if isinstance(now, int) and not hasattr(now, "name"):
        return int(value)
    if hasattr(now, "name"):  # an enumeration of pybind11
        return getattr(type(now), value)
    return value


class OrtSession:
    """A session of ONNX Runtime. On CUDA the outputs are bound to the device, and it is checked that they are there."""

    def __init__(self, session: ort.InferenceSession, placement: Placement, device: str) -> None:
        self.placement = placement
        self._session = session
        self._device = device
        self._outputs = [output.name for output in session.get_outputs()]

    def run(self, inputs: Mapping[str, NDArray[Any]]) -> Tensors:
        """Return the outputs by name, on the host."""
        if self._device == "cpu":
            return as_arrays(self._outputs, self._session.run(self._outputs, dict(inputs)))
        return self._run_bound(inputs)

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


def _not_implemented() -> type[Exception]:
    from onnxruntime.capi.onnxruntime_pybind11_state import NotImplemented as Refusal

    return Refusal  # type: ignore[no-any-return]


def _placement(session: ort.InferenceSession, requested: str) -> Placement:
    nodes: Counter[str] = Counter()
    # The query is missing before ORT 1.24; then the nodes stay unknown, and the report says so.
    if hasattr(session, "get_provider_graph_assignment_info"):
        for subgraph in session.get_provider_graph_assignment_info():
            nodes[subgraph.ep_name] += len(subgraph.get_nodes())
    return Placement((requested,), tuple(session.get_providers()), dict(nodes))


def _refuse_fallback(placement: Placement, requested: str) -> None:
    # ORT gives a CPU session without an exception when a provider fails to start.
    if requested not in placement.used:
        raise UnavailableError(
            f"asked for {requested}, the session runs on {', '.join(placement.used)} instead"
        )
    if placement.nodes_by_provider and not placement.nodes_by_provider.get(requested):
        elsewhere = ", ".join(placement.nodes_by_provider)
        raise UnavailableError(f"{requested} is listed by the session, but all nodes run on {elsewhere}")


@cache
def _why_not(provider: str) -> str:
    """Return why no session runs on the provider, "" if one does: a graph of one node is really opened on it.

    ORT gives a CPU session and logs the reason, if at all; the system's loader says it in a line.
    """
    if provider == _CPU:
        return ""
    import onnxruntime

    if provider == _CUDA and hasattr(onnxruntime, "preload_dlls"):
        _preload_quietly()
    onnxruntime.set_default_logger_severity(_FATAL_ONLY)
    try:
        session = onnxruntime.InferenceSession(_ONE_NODE, providers=[provider], enable_fallback=0)
    except Exception as error:  # noqa: BLE001 - ORT's exceptions have no common type but Exception
        return " ".join(str(error).split())
    finally:
        onnxruntime.set_default_logger_severity(_WARNINGS)
    if provider in session.get_providers():
        return ""
    reasons = "; ".join(filter(None, (_loader_words(), _no_device())))
    return reasons or f"ONNX Runtime starts no session on {provider} and does not say why"


def _loader_words() -> str:
    """Return what the system's loader says of ORT's CUDA library, "" if it loads or is not there."""
    import onnxruntime

    library = Path(onnxruntime.__file__).parent / "capi" / "libonnxruntime_providers_cuda.so"
    try:
        ctypes.CDLL(str(library))
    except OSError as error:
        return str(error) if library.exists() else ""
    return ""


def _preload_quietly() -> None:
    """Load CUDA's libraries from the installed NVIDIA or torch wheels; ORT prints about each one it misses."""
    import contextlib
    import io

    import onnxruntime

    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        onnxruntime.preload_dlls()


def _no_device() -> str:
    """Return why there is no CUDA device, in the driver's words, "" if there is one."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        return str(error)
    if status := driver.cuInit(0):
        return f"cuInit failed with CUDA error {status}"
    count = ctypes.c_int(0)
    driver.cuDeviceGetCount(ctypes.byref(count))
    return "" if count.value else "the CUDA driver lists no device"


def installed_builds() -> tuple[str, ...]:
    """Return the ONNX Runtime distributions installed; two of them overwrite each other's files."""
    names = ("onnxruntime", "onnxruntime-gpu", "onnxruntime-openvino", "onnxruntime-directml")
    found = {
        dist.metadata["Name"].lower() for dist in importlib.metadata.distributions() if dist.metadata["Name"]
    }
    return tuple(name for name in names if name in found)
