"""The torch.compile adapter: what ran is the compiled graph, at every size, or it is said that it was not."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from onnx_attest.verify import verify
from onnx_attest.verify.runtimes.base import UnavailableError
from onnx_attest.verify.runtimes.registry import select
from onnx_attest.verify.runtimes.torch_compile import CompiledSession

(COMPILE,) = select(("torch-compile",))


def test_without_a_compiler_it_is_not_usable_and_says_so(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler++")
    found = COMPILE.availability()
    assert (found.usable, found.install) == (False, "g++, or CXX set")
    assert found.reason == "Inductor needs a C++ compiler; there is no no-such-compiler++"


def test_a_copy_of_the_file_is_refused_since_it_runs_the_module(exported):
    with pytest.raises(UnavailableError, match="runs the module, not a copy of the file"):
        COMPILE.open(exported["sdpa-decomposed-18"], model=b"")


def test_call_that_fell_back_to_eager_mode_is_refused(exported, monkeypatch):
    """With nothing compiled dynamo runs the module itself, and says nothing."""
    import torch

    monkeypatch.setattr(torch, "compile", lambda module, **options: module)
    session = COMPILE.open(exported["sdpa-decomposed-18"])
    with pytest.raises(UnavailableError, match="torch ran the module in eager mode"):
        session.run(_like(exported["sdpa-decomposed-18"], 5))


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("g++"), reason="needs g++")
def test_compiled_graph_runs_at_every_size_and_is_compiled_once_for_many(exported):
    artifact = exported["sdpa-decomposed-18"]
    session = COMPILE.open(artifact)
    assert isinstance(session, CompiledSession)
    for length in (7, 64, 129, 33):
        session.run(_like(artifact, length))
    assert (session.graphs, session.calls) == (1, 4)


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("g++"), reason="needs g++")
def test_compiled_module_is_verified_as_a_party_of_its_own(exported):
    artifact = exported["sdpa-decomposed-18"]
    shapes = {name: array.shape for name, array in _like(artifact, 9).items()}
    report = verify(artifact, runtimes=["torch-compile"], input_shapes=shapes)
    assert {(cell.runtime, cell.verdict) for cell in report.cells} == {("torch-compile", "passed")}


def _like(artifact, length: int) -> dict[str, np.ndarray]:
    """Return numbers of the contract's shapes."""
    rng = np.random.default_rng(length)
    given = {}
    for spec in artifact.manifest.contract.inputs:
        axes = [(2 if axis == "batch" else length) if isinstance(axis, str) else axis for axis in spec.axes]
        floats = rng.standard_normal(axes).astype(np.float32)
        given[spec.name] = np.ones(axes, bool) if spec.dtype == "bool" else floats
    return given
