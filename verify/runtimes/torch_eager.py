"""PyTorch itself: runs the module that the artifact came from, so it is a party of its own."""

from __future__ import annotations

import contextlib
import copy
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from onnx_attest.errors import UsageError
from onnx_attest.verify.arithmetic import OF_DTYPE
from onnx_attest.verify.runtimes.base import Availability, Placement, Session, Tensors, UnavailableError

if TYPE_CHECKING:
    from onnx_attest.export.artifact import Artifact

_CPU = "cpu"
_DEVICE = "an NVIDIA GPU with its driver, and a build of torch for it"


@dataclass(frozen=True)
class TorchRuntime:
    """The module in eager mode on a device, as torch names it."""

    name: str = "torch"
    device: str = _CPU
    runs_module: ClassVar[bool] = True

    def arithmetic(self, dtype: str) -> str:
        """Return the declared profile."""
        return OF_DTYPE[dtype]

    def availability(self) -> Availability:
        """Say whether torch can be imported, and reaches the device."""
        try:
            import torch
        except (ImportError, OSError) as error:  # OSError: a library of a broken installation
            return Availability(False, reason=str(error), install="onnx-attest[torch]")
        version = str(torch.__version__)
        if self.device != _CPU:
            try:
                torch.zeros(1, device=self.device).cpu()
            except (RuntimeError, AssertionError) as error:  # AssertionError: a build without CUDA
                return Availability(False, version, " ".join(str(error).split()), _DEVICE)
        return Availability(True, version)

    def open(self, artifact: Artifact, *, model: bytes | None = None, threads: int | None = None) -> Session:
        """Return a session over the artifact's module; `model` is ignored: torch runs no ONNX file.

        Raises:
            UnavailableError: no torch, no module known, or the module no longer has the exported parameters.
        """
        self.availability().demand()
        import torch

        if threads is not None:
            torch.set_num_threads(threads)
        module = module_of(artifact)
        if self.device != _CPU:  # a live module is the caller's, and stays where it is
            module = copy.deepcopy(module).to(self.device)
        return TorchSession(module, artifact, self.device)


def cuda() -> TorchRuntime:
    """Return torch on CUDA as it is by default: products of float32 without TF32."""
    return TorchRuntime("torch-cuda", "cuda")


@dataclass(frozen=True)
class Heard:
    """What a run of a module had inside, in order.

    Attributes:
        norms: what each normalisation gave.
        lookups: the indices of each embedding.
    """

    norms: list[NDArray[Any]]
    lookups: list[NDArray[Any]]


class TorchSession:
    """A module called as `forward(*inputs)` in the contract's order; inputs go to its device, outputs come back."""

    def __init__(self, module: Any, artifact: Artifact, device: str = _CPU) -> None:
        assert artifact.manifest is not None  # module_of refused it otherwise
        self.placement = Placement((device,), (device,), details=_details(device))
        self._module, self._device = module, device
        self._inputs = [spec.name for spec in artifact.manifest.contract.inputs]
        self._outputs = [spec.name for spec in artifact.manifest.contract.outputs]

    def run(self, inputs: Mapping[str, NDArray[Any]]) -> Tensors:
        """Return the outputs by name.

        Raises:
            UnavailableError: an output is on another device than asked for.
        """
        import torch

        # What `forward` makes without naming a device (a mask, positions) is made there too.
        where = contextlib.nullcontext() if self._device == _CPU else torch.device(self._device)
        with torch.inference_mode(), where:
            result = self._module(*(_to_torch(inputs[name]).to(self._device) for name in self._inputs))
        values = result if isinstance(result, tuple | list) else (result,)
        for name, value in zip(self._outputs, values, strict=True):
            if value.device.type != self._device:
                raise UnavailableError(f"{name} came back on {value.device.type}, not on {self._device}")
        return {name: _to_numpy(value) for name, value in zip(self._outputs, values, strict=True)}

    def on_device(self, inputs: Mapping[str, NDArray[Any]]) -> TorchBound | None:
        """Return a call with the inputs on the device, None on the CPU."""
        if self._device == _CPU:
            return None
        return TorchBound(self._module, [inputs[name] for name in self._inputs], self._device)

    def attention_weights(self, inputs: Mapping[str, NDArray[Any]]) -> list[NDArray[Any]]:
        """Return the weights of each scaled_dot_product_attention that a run calls, in order.

        The kernel hides them; with V replaced by the identity, a block of columns at a time, its output is them.
        """
        from onnx_attest.verify.runtimes.torch_weights import WeightsSeen

        return self._run_and_see(inputs, WeightsSeen())[1]

    def softmax_inputs(self, inputs: Mapping[str, NDArray[Any]]) -> list[NDArray[Any]]:
        """Return what goes into each softmax that a run calls by its name, in order."""
        from onnx_attest.verify.runtimes.torch_weights import SoftmaxInputsSeen

        return self._run_and_see(inputs, SoftmaxInputsSeen())[1]

    def run_and_listen(self, inputs: Mapping[str, NDArray[Any]]) -> tuple[Tensors, Heard]:
        """Return the outputs, and what each normalisation gave and each embedding was asked for, in order."""
        from onnx_attest.verify.runtimes.torch_weights import PlacesSeen

        listener = PlacesSeen()
        outputs, norms = self._run_and_see(inputs, listener)
        return outputs, Heard(norms, [_to_numpy(indices) for indices in listener.looked_up])

    def _run_and_see(
        self, inputs: Mapping[str, NDArray[Any]], listener: Any
    ) -> tuple[Tensors, list[NDArray[Any]]]:
        with listener:
            outputs = self.run(inputs)
        return outputs, [_to_numpy(tensor) for tensor in listener.seen]


class TorchBound:
    """A call whose inputs are on a device, and whose outputs are left there.

    Attributes:
        copied_in_s: seconds that the inputs took to get there.
    """

    def __init__(self, module: Any, inputs: Sequence[NDArray[Any]], device: str) -> None:
        self._module, self._device = module, device
        start = time.perf_counter()
        self._inputs = [_to_torch(array).to(device) for array in inputs]
        self._wait()
        self.copied_in_s = time.perf_counter() - start
        self._outputs: Any = ()

    def run(self) -> None:
        """Compute the outputs, and wait for the device: torch returns before it has computed them."""
        import torch

        with torch.inference_mode(), torch.device(self._device):
            self._outputs = self._module(*self._inputs)
        self._wait()

    def copied_out_s(self) -> float:
        """Copy the outputs of the last run to the host; return the seconds that it took."""
        outputs = self._outputs if isinstance(self._outputs, tuple | list) else (self._outputs,)
        start = time.perf_counter()
        for output in outputs:
            output.cpu()
        return time.perf_counter() - start

    def _wait(self) -> None:
        import torch

        if self._device != _CPU:
            torch.cuda.synchronize()


def _details(device: str) -> dict[str, str]:
    """Return what decides the arithmetic on a device, and which device it is."""
    import torch

    if device == _CPU:
        return {}
    return {
        "device": str(torch.cuda.get_device_name()),
        "cuda": str(torch.version.cuda),
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
    }


def _to_torch(array: NDArray[Any]) -> Any:
    """Return the array as a tensor; NumPy has no bfloat16 of its own, torch knows none but its own."""
    import torch

    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def _to_numpy(tensor: Any) -> NDArray[Any]:
    import torch

    tensor = tensor.cpu()
    if tensor.dtype == torch.bfloat16:
        import ml_dtypes

        return np.asarray(tensor.contiguous().view(torch.int16).numpy().view(ml_dtypes.bfloat16))
    return np.asarray(tensor.numpy())


def module_of(artifact: Artifact) -> Any:
    """Return the module that an artifact was exported from: the live one, or built again from what the manifest names.

    Raises:
        UnavailableError: none is known, it is code that nobody said to run, or it has other parameters now.
    """
    manifest = artifact.manifest
    if manifest is None:
        raise UnavailableError("the file has no manifest, so its module is unknown; name it with --against")
    if artifact.module is not None:
        return artifact.module
    if manifest.module is None:
        raise UnavailableError("the manifest names no module; pass it with --against or verify(against=...)")
    if ":" in manifest.module and not artifact.trusted:
        raise UnavailableError(
            f"the manifest names {manifest.module}, which is code: to run it, say --against {manifest.module}"
        )
    import torch

    from onnx_attest.export.lower import prepared
    from onnx_attest.models.entry import build_module, parameters_digest, resolve

    try:
        dtype = getattr(torch, manifest.dtype)
        module = prepared(build_module(resolve(manifest.module)).to(dtype), manifest.contract, dtype)
    except UsageError as error:
        raise UnavailableError(f"its module cannot be built: {error}") from error
    if parameters_digest(module) != manifest.parameters_sha256:
        raise UnavailableError(
            f"{manifest.module} now builds other parameters than were exported; export it again"
        )
    return module
