"""ONNX Runtime as JavaScript has it: native under Node, and WebAssembly under Node and in a real browser.

Only one backend is asked for in each, so there is none to fall back to: a session that opens runs on it.
"""

from __future__ import annotations

import atexit
import itertools
import shutil
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from onnx_attest.verify.arithmetic import OF_DTYPE
from onnx_attest.verify.runtimes import web_packages
from onnx_attest.verify.runtimes.base import Availability, Placement, Session, Tensors, UnavailableError
from onnx_attest.verify.runtimes.js_browser import BrowserHost
from onnx_attest.verify.runtimes.js_frames import pack, read_outputs, unpack, write_inputs
from onnx_attest.verify.runtimes.js_hosts import Host, HostError, NodeHost, is_posix
from onnx_attest.verify.runtimes.model_file import ModelFile

if TYPE_CHECKING:
    from onnx_attest.export.artifact import Artifact

_NATIVE, _WASM = "onnxruntime-node", "onnxruntime-web"
_CHROMIUM = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_LIMIT_S = 120.0
_REFUSALS = ("Could not find an implementation", "ERROR_CODE: 9", "NOT_IMPLEMENTED")
_NUMBERS = itertools.count()
# What onnx calls the element types that JavaScript's onnxruntime has tensors of.
_TYPES = ("FLOAT", "DOUBLE", "FLOAT16", "INT64", "UINT64", "INT32", "UINT32", "INT16", "UINT16", "INT8", "UINT8", "BOOL")  # fmt: skip


class JavaScriptError(RuntimeError):
    """onnxruntime threw: its own message."""


@dataclass(frozen=True)
class JavaScriptRuntime:
    """One package of onnxruntime in one kind of process.

    Attributes:
        package: onnxruntime-node or onnxruntime-web.
        browser: whether it runs in Chromium instead of Node.
        time_limit_s: of one call.
    """

    name: str = "ort-node"
    package: str = _NATIVE
    browser: bool = False
    time_limit_s: float = _LIMIT_S

    def holds_scores(self, operator: str, *, hidden: bool) -> bool:
        """Whether all scores of a fused attention are held at once."""
        return operator == "Attention"

    @property
    def backend(self) -> str:
        """The execution provider, as JavaScript calls it."""
        return "cpu" if self.package == _NATIVE else "wasm"

    def arithmetic(self, dtype: str) -> str:
        """Return the declared profile."""
        return OF_DTYPE[dtype]

    def availability(self) -> Availability:
        """Say whether the package, and Node or a browser with its driver, are there; starts none of them."""
        version = web_packages.installed(self.package) or "unknown"
        if self.browser and not is_posix():
            return Availability(False, version, "a browser is steered on Linux and macOS only")
        if missing := self._missing_program():
            return Availability(
                False, version, f"there is no {missing}", f"the system's package of {missing}"
            )
        if reason := web_packages.why_not_installed(self.package):
            return Availability(False, version, reason, web_packages.COMMAND)
        return Availability(True, version)

    def _missing_program(self) -> str:
        if not self.browser:
            return "" if shutil.which("node") else "node"
        if _chromium() is None:
            return "chromium"
        return "" if shutil.which("chromedriver") else "chromedriver"

    def open(self, artifact: Artifact, *, model: bytes | None = None, threads: int | None = None) -> Session:
        """Return a session, in a process that all sessions of this runtime share.

        Raises:
            UnavailableError: something is missing, or onnxruntime has no kernel or no tensor of that type.
            JavaScriptError: it refuses the file.
            HostError: the process dies or hangs.
        """
        self.availability().demand()
        file = ModelFile.of(artifact, model)
        _refuse_types(file)
        pool = _pool(self, threads)
        number = next(_NUMBERS)
        request: dict[str, Any] = {"op": "open", "id": number, "threads": threads}
        if self.package == _NATIVE and model is None:
            request["path"] = str(artifact.path.resolve())
            header, _ = pool.ask(pack(request), self.time_limit_s)
        else:
            header, _ = pool.ask(pack(request, file.whole()), self.time_limit_s)
        placement = Placement((self.backend,), (header["backend"],), details=dict(header["facts"]))
        return JavaScriptSession(pool, number, placement, self.time_limit_s)


def web() -> JavaScriptRuntime:
    """Return WebAssembly in a real browser."""
    return JavaScriptRuntime("ort-web", _WASM, browser=True)


def web_node() -> JavaScriptRuntime:
    """Return WebAssembly under Node: the browser's kernels without a browser."""
    return JavaScriptRuntime("ort-web-node", _WASM)


class JavaScriptSession:
    """A session in another process."""

    def __init__(self, pool: _Pool, number: int, placement: Placement, time_limit_s: float) -> None:
        self.placement = placement
        self._pool, self._number, self._time_limit_s = pool, number, time_limit_s
        weakref.finalize(self, pool.forgotten.append, number)

    def run(self, inputs: Mapping[str, NDArray[Any]]) -> Tensors:
        """Return the outputs by name.

        Raises:
            UnavailableError, JavaScriptError, HostError: as in `JavaScriptRuntime.open`.
        """
        return read_outputs(*self._ask({"op": "run"}, inputs))

    def calls_s(self, inputs: Mapping[str, NDArray[Any]], calls: int) -> tuple[float, ...]:
        """Return the seconds of so many runs on JavaScript's own clock, without the way there and back.

        Raises:
            UnavailableError, JavaScriptError, HostError: as in `JavaScriptRuntime.open`.
        """
        header, _ = self._ask({"op": "time", "calls": calls}, inputs)
        return tuple(map(float, header["seconds"]))

    def _ask(
        self, request: dict[str, Any], inputs: Mapping[str, NDArray[Any]]
    ) -> tuple[dict[str, Any], memoryview]:
        return self._pool.ask(write_inputs({**request, "id": self._number}, inputs), self._time_limit_s)


class _Pool:
    """The process of one runtime.

    Attributes:
        forgotten: sessions that nobody holds any more; they are released with the next request.
    """

    def __init__(self, host: Host) -> None:
        self.host = host
        self.alive = True
        self.forgotten: list[int] = []

    def ask(self, frame: bytes, time_limit_s: float) -> tuple[dict[str, Any], memoryview]:
        """Return the header and the body of the answer to a frame.

        Raises:
            UnavailableError: onnxruntime has no kernel; its own words.
            JavaScriptError: it threw; its own words.
            HostError: the process is gone.
        """
        if not self.alive:
            raise HostError("the process of this session has ended")
        try:
            self._release(time_limit_s)
            header, body = unpack(self.host.ask(frame, time_limit_s))
        except HostError:
            self.alive = False
            raise
        if error := header.get("error"):
            text = " ".join(str(error["message"]).split())
            if any(words in text for words in _REFUSALS):
                raise UnavailableError(text)
            raise JavaScriptError(text)
        return header, body

    def _release(self, time_limit_s: float) -> None:
        gone, self.forgotten[:] = list(self.forgotten), []
        if gone:
            self.host.ask(pack({"op": "none", "release": gone}), time_limit_s)

    def close(self) -> None:
        """End the process."""
        if self.alive:
            self.alive = False
            self.host.close()


_POOLS: dict[tuple[str, str, bool, int], _Pool] = {}


def _pool(runtime: JavaScriptRuntime, threads: int | None) -> _Pool:
    """Return the process of a runtime, begun anew if it died; the number of WebAssembly's threads is fixed in it."""
    count = (threads or 1) if runtime.browser else 1
    key = (runtime.package, str(web_packages.folder()), runtime.browser, count)
    if key not in _POOLS or not _POOLS[key].alive:
        _POOLS[key] = _Pool(_start(runtime, count))
    return _POOLS[key]


def _start(runtime: JavaScriptRuntime, threads: int) -> Host:
    scripts, folder = Path(str(files("onnx_attest.verify.runtimes").joinpath("js"))), web_packages.folder()
    if runtime.browser:
        chromium, driver = _chromium(), shutil.which("chromedriver")
        assert chromium is not None  # `availability` said so
        assert driver is not None
        dist = folder / "node_modules" / runtime.package / "dist"
        return BrowserHost(chromium, driver, scripts, dist, threads)
    node = shutil.which("node")
    assert node is not None
    return NodeHost(node, scripts / "node.mjs", runtime.package, str(folder))


@atexit.register
def close_all() -> None:
    """End every process that was started here."""
    for pool in _POOLS.values():
        pool.close()
    _POOLS.clear()


def _chromium() -> str | None:
    return next(filter(None, map(shutil.which, _CHROMIUM)), None)


def _refuse_types(file: ModelFile) -> None:
    import onnx

    for name, kind in file.element_types.items():
        label = onnx.TensorProto.DataType.Name(kind)
        if label not in (*_TYPES, "UNDEFINED"):  # a copy may not say what type its new outputs have
            raise UnavailableError(
                f"onnxruntime in JavaScript has no tensor of {label.lower()}, which {name} is"
            )
