"""Runs cases on a runtime in a process of its own: a crash or a hang ends one case, and the next has a new process."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import onnx

from onnx_attest.export.artifact import Artifact, digest
from onnx_attest.verify.conformance.case import Arrays
from onnx_attest.verify.conformance.words import shortened_words
from onnx_attest.verify.runtimes.base import ProcessDiedError, Runtime, UnavailableError

CASE_LIMIT_S = 60.0
"""The longest case takes a tenth of a second, an import of a runtime a few seconds: what takes longer hangs."""
_NOWHERE = Path("conformance.onnx")
"""A case is given as bytes; only what it is called comes from a path."""
_FILE = re.compile(r"\S*[/\\](?:model-\d+|conformance)\.onnx")
"""Where an isolated runtime is given a copy: of this run, and in the words of some runtimes."""


@dataclass(frozen=True, eq=False)
class Ran:
    """What a runtime made of a model: outputs by name, else its words, or how its process ended."""

    outputs: Arrays | None = None
    words: str = ""
    crashed: bool = False


def run_case(runtime: Runtime, model: onnx.ModelProto, inputs: Arrays) -> Ran:
    """Return what a runtime makes of a model with these inputs, on one thread.

    Args:
        runtime: in a process of its own, see `runtimes.isolated`; else what it does to its process, it does to this one.
        model: given as bytes.
        inputs: by name.
    """
    data = model.SerializeToString()
    artifact = Artifact(_NOWHERE, digest(data))
    try:
        return Ran(runtime.open(artifact, model=data, threads=1).run(inputs))
    except ProcessDiedError as death:
        return Ran(words=_words(str(death)), crashed=True)
    except UnavailableError as refusal:
        return Ran(words=_words(str(refusal)))
    except Exception as error:  # noqa: BLE001 - a runtime may raise anything; it is recorded, not hidden
        return Ran(words=_words(f"{type(error).__name__}: {error}"))


def _words(text: str) -> str:
    return shortened_words(_FILE.sub("the model", text))
