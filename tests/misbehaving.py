"""A runtime that takes its process along, for tests: at the top of a module, so that another process can import it."""

from __future__ import annotations

import atexit
import ctypes
import os
import stat
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from onnx_attest.verify.runtimes.base import Availability, FallbackError, Placement, UnavailableError
from onnx_attest.verify.runtimes.onnxruntime import OrtRuntime

GIB = 2**30


def segfault() -> None:
    ctypes.string_at(0)


def abort() -> None:
    os.abort()


def spin() -> None:
    while True:
        pass


def allocate() -> None:
    blocks = [np.ones(GIB // 16, np.uint8) for _ in range(100 * 16)]
    raise AssertionError(f"{len(blocks)} blocks could be had")


def allocate_in_a_child() -> None:
    subprocess.run([sys.executable, "-c", "import misbehaving; misbehaving.allocate()"], env={"PYTHONPATH": os.pathsep.join(sys.path)})  # fmt: skip


def write_garbage() -> None:
    for handle in range(3, 64):
        try:
            if stat.S_ISFIFO(os.fstat(handle).st_mode):
                os.write(handle, b"\x00\xff garbage\n")
        except OSError:  # not open, or the end for reading
            continue


def print_garbage() -> None:
    sys.stdout.write("garbage on stdout\n")
    sys.stdout.flush()
    os.write(1, b"more of it\n")


def exit_with_0() -> None:
    os._exit(0)


def raise_exit() -> None:
    sys.exit(0)


def leave_a_child_and_abort() -> None:
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    os.abort()


def raise_error() -> None:
    raise RuntimeError("a poisoned import")


def fall_back() -> None:
    raise FallbackError("elsewhere")


def tidy_up_later() -> None:
    """Leave a file where this process works, when it ends as it should."""
    atexit.register(lambda: Path("tidied").touch())


def refuse() -> None:
    raise UnavailableError("no kernel for this")


@dataclass(frozen=True)
class Misbehaving:
    """ONNX Runtime, but for one deed: at the import, as it opens a file, or as it runs.

    Attributes:
        rows: of the inputs that it is done with, any if none is given.
        call: which run of a session it is, any if 0.
        outputs: how many the graph has, any if 0.
    """

    deed: str
    at: str = "run"
    rows: tuple[int, ...] = ()
    call: int = 0
    outputs: int = 0
    name: str = "misbehaving"

    def arithmetic(self, dtype: str) -> str:
        return "fp32"

    def availability(self) -> Availability:
        self.do("import")
        return Availability(True, "1.0")

    def open(self, artifact, *, model=None, threads=None):
        self.do("copy" if model is not None else "open")
        return _Session(OrtRuntime("ort-cpu").open(artifact, model=model, threads=threads), self)

    def do(self, at: str) -> None:
        if self.at == at:
            globals()[self.deed]()


class _Session:
    placement = Placement(("here",), ("here",), {"here": 1})

    def __init__(self, session, runtime: Misbehaving) -> None:
        self._session, self._runtime, self._calls = session, runtime, 0

    def run(self, inputs):
        self._calls += 1
        rows = len(next(iter(inputs.values())))
        chosen = not self._runtime.rows or rows in self._runtime.rows
        outputs = self._session.run(inputs)
        if chosen and self._runtime.call in (0, self._calls) and self._runtime.outputs in (0, len(outputs)):
            self._runtime.do("run")
        return outputs

    def process(self) -> int:
        return os.getpid()

    def echo(self, value):
        return value
