"""OpenVINO: a device with its properties; on a CPU with bfloat16 instructions its default is not the file's arithmetic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from onnx_attest.errors import UsageError
from onnx_attest.verify.arithmetic import OF_DTYPE
from onnx_attest.verify.runtimes.base import Availability, Placement, Session, Tensors, UnavailableError
from onnx_attest.verify.runtimes.model_file import ModelFile

if TYPE_CHECKING:
    from onnx_attest.export.artifact import Artifact

_HINT = "INFERENCE_PRECISION_HINT"
# A refusal, as opposed to a fault, in OpenVINO's own words: it has no translation or no kernel for something.
_REFUSALS = (
    "No conversion rule found",
    "NotImplementedFailure",
    "not implemented",
    "not supported",
    "nsupported",
)


@dataclass(frozen=True)
class OpenVinoRuntime:
    """One device of OpenVINO.

    Attributes:
        device: as OpenVINO names it, CPU or GPU.0 for example.
        properties: of the compiled model, as texts. Without INFERENCE_PRECISION_HINT=f32 OpenVINO takes the fastest
            format that the device has, which is bfloat16 on newer CPUs, and says nothing.
    """

    name: str = "openvino-cpu-default"
    device: str = "CPU"
    properties: Mapping[str, str] = field(default_factory=dict)

    def arithmetic(self, dtype: str) -> str:
        """Return the profile of the file's dtype: that OpenVINO may compute in another one is what is to be found."""
        return OF_DTYPE[dtype]

    def availability(self) -> Availability:
        """Say whether OpenVINO can be imported and lists the device."""
        try:
            core = _core()
        except (ImportError, OSError) as error:
            return Availability(False, reason=str(error), install="onnx-attest[openvino]")
        version = _version()
        devices = list(core.available_devices)
        if self.device.partition(".")[0] in {device.partition(".")[0] for device in devices}:
            return Availability(True, version)
        reason = f"OpenVINO has no device {self.device} here, only {', '.join(devices) or 'none'}"
        return Availability(False, version, reason, f"the driver of {self.device}")

    def open(self, artifact: Artifact, *, model: bytes | None = None, threads: int | None = None) -> Session:
        """Return a session on the device, or raise `UnavailableError` in OpenVINO's words."""
        self.availability().demand()
        file = ModelFile.of(artifact, model)
        properties = dict(self.properties)
        if threads is not None and self.device == "CPU":
            properties["INFERENCE_NUM_THREADS"] = str(threads)
        try:
            read = _core().read_model(*((str(artifact.path),) if model is None else (file.whole(), b"")))
            compiled = _core().compile_model(read, self.device, properties)
        except Exception as error:
            text = " ".join(str(error).split())
            if any(words in text for words in _REFUSALS):
                raise UnavailableError(text) from error
            raise
        placement = _placement(compiled, self.device)
        self._refuse_other_than_asked(placement)
        return OpenVinoSession(compiled, file.outputs, placement)

    def _refuse_other_than_asked(self, placement: Placement) -> None:
        asked, got = self.properties.get(_HINT), placement.details[_HINT]
        if asked is not None and asked != got:
            raise UnavailableError(f"asked for {_HINT}={asked}, the compiled model has {got}")
        if any(not used.startswith(self.device.partition(".")[0]) for used in placement.used):
            raise UnavailableError(f"asked for {self.device}, the model runs on {', '.join(placement.used)}")


def cpu() -> OpenVinoRuntime:
    """Return the CPU in the file's own arithmetic."""
    return OpenVinoRuntime("openvino-cpu", "CPU", {_HINT: "f32"})


def device(reference: str) -> OpenVinoRuntime:
    """Return the runtime that `openvino:DEVICE[,KEY=VALUE...]` names.

    Raises:
        UsageError: no device is named, or a property is no `KEY=VALUE`.
    """
    name, *pairs = reference.removeprefix("openvino:").split(",")
    if not name or not all("=" in pair and pair[0] != "=" for pair in pairs):
        raise UsageError(f"{reference!r} is no device: give openvino:DEVICE, then ,KEY=VALUE")
    return OpenVinoRuntime(reference, name, dict(pair.partition("=")[::2] for pair in pairs))


class OpenVinoSession:
    """A model compiled for a device.

    OpenVINO gives one output several names where the graph only renames a value, and may list them in any order: they
    are found by the file's names.
    """

    def __init__(self, compiled: Any, outputs: tuple[str, ...], placement: Placement) -> None:
        self.placement = placement
        self._request = compiled.create_infer_request()
        self._inputs = {name: port for port in compiled.inputs for name in port.names}
        ports = {name: port for port in compiled.outputs for name in port.names}
        if missing := [name for name in outputs if name not in ports]:
            raise LookupError(
                f"OpenVINO gives no output called {', '.join(missing)}, only {', '.join(ports)}"
            )
        self._outputs = {name: ports[name] for name in outputs}

    def run(self, inputs: Mapping[str, NDArray[Any]]) -> Tensors:
        """Return the outputs by name; an input that the compiled model dropped is not fed."""
        for name, value in inputs.items():
            if name in self._inputs:
                self._request.set_tensor(self._inputs[name], _to_tensor(value))
        self._request.infer()
        return {name: _to_numpy(self._request.get_tensor(port)) for name, port in self._outputs.items()}


def _to_tensor(array: NDArray[Any]) -> Any:
    import openvino

    contiguous = np.asarray(array, order="C")
    if array.dtype.name == "bfloat16":
        return openvino.Tensor(
            contiguous.view(np.int16), openvino.Shape(list(array.shape)), openvino.Type.bf16
        )
    return openvino.Tensor(contiguous)


def _to_numpy(tensor: Any) -> NDArray[Any]:
    """Return a copy: the request writes its next outputs to the same place. It shows bfloat16 as if it were float16."""
    if tensor.element_type.get_type_name() == "bf16":
        import ml_dtypes

        return np.array(tensor.data).view(ml_dtypes.bfloat16)
    return np.array(tensor.data)


@cache
def _core() -> Any:
    import openvino

    return openvino.Core()


def _version() -> str:
    import openvino

    return str(openvino.__version__).partition("-")[0]


def _placement(compiled: Any, device: str) -> Placement:
    """Return what the compiled model says of itself; its own nodes have other kinds and numbers than the file's."""
    hint = compiled.get_property(_HINT)
    used = tuple(str(name) for name in compiled.get_property("EXECUTION_DEVICES"))
    return Placement((device,), used, details={_HINT: str(hint.get_type_name())})
