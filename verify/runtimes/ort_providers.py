"""Which providers of ONNX Runtime work here: built in, or plugged in from a library; and why the others do not."""

from __future__ import annotations

import ctypes
import importlib
import importlib.metadata
import os
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnxruntime as ort

_CPU = "CPUExecutionProvider"
_CUDA = "CUDAExecutionProvider"
_FATAL_ONLY, _WARNINGS = 4, 2  # the latter is ORT's default
# The smallest model there is, `g (float[1] x) => (float[1] y) { y = Identity (x) }` at opset 18, serialised: a
# process that only runs an artifact needs no onnx to ask a provider whether it works.
ONE_NODE = bytes.fromhex(
    "08083a390a120a017812017922084964656e746974793a001201675a0f0a0178120a0a08080112040a020801620f0a0179120a0a08"
    "080112040a02080142040a001012"
)


@cache
def why_not(provider: str) -> str:
    """Return why no session runs on the provider, "" if one does: a graph of one node is really opened on it.

    ORT gives a CPU session and logs the reason, if at all; the system's loader says it in a line.
    """
    import onnxruntime

    if provider not in onnxruntime.get_available_providers():
        built = ", ".join(onnxruntime.get_available_providers())
        return f"this build of ONNX Runtime has no {provider}, only {built}"
    if provider == _CPU:
        return ""
    if provider == _CUDA and hasattr(onnxruntime, "preload_dlls"):
        _preload_quietly()
    onnxruntime.set_default_logger_severity(_FATAL_ONLY)
    try:
        session = onnxruntime.InferenceSession(ONE_NODE, providers=[provider], enable_fallback=0)
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


def why_no_plugin(provider: str, library: str) -> str:
    """Return why the provider of a plugin library runs nothing here, "" if it is there."""
    try:
        plugin_devices(provider, library)
    except Exception as error:  # noqa: BLE001 - an import of somebody's package, a loader, ORT: no common type
        return " ".join(str(error).split()) or type(error).__name__
    return ""


def plugin_version(provider: str, library: str) -> str:
    """Return the version that a plugin gives its devices, "unknown" if it gives none."""
    return str(plugin_devices(provider, library)[0].ep_metadata.get("version", "unknown"))


@cache
def plugin_devices(provider: str, library: str) -> tuple[ort.OrtEpDevice, ...]:
    """Return the devices that a plugin library offers under a provider's name; it is registered once a process.

    Raises:
        LookupError: this ONNX Runtime takes no plugins, or the library has no such provider.
        Exception: whatever importing the package, or loading the library, raises.
    """
    import onnxruntime

    if not hasattr(onnxruntime, "register_execution_provider_library"):
        raise LookupError(f"ONNX Runtime {onnxruntime.__version__} takes no plugin providers")
    path = _library_path(library)
    # Some plugins call their provider by the name that they are registered under.
    onnxruntime.register_execution_provider_library(provider, os.fspath(path))
    devices = onnxruntime.get_ep_devices()
    found = tuple(device for device in devices if device.ep_name == provider)
    if not found:
        names = ", ".join(dict.fromkeys(device.ep_name for device in devices))
        onnxruntime.unregister_execution_provider_library(provider)
        raise LookupError(f"{path.name} offers no provider {provider} here; there are {names}")
    return found


def _library_path(library: str) -> Path:
    """Return the file of a plugin: as given, or as its package says."""
    path = Path(library)
    if path.suffix in (".so", ".dll", ".dylib") or len(path.parts) > 1:
        if not path.is_file():
            raise FileNotFoundError(f"no file {library}")
        return path.resolve()
    return Path(importlib.import_module(library).get_library_path())


def installed_builds() -> tuple[str, ...]:
    """Return the ONNX Runtime distributions installed; two of them overwrite each other's files."""
    names = ("onnxruntime", "onnxruntime-gpu", "onnxruntime-openvino", "onnxruntime-directml")
    found = {
        dist.metadata["Name"].lower() for dist in importlib.metadata.distributions() if dist.metadata["Name"]
    }
    return tuple(name for name in names if name in found)
