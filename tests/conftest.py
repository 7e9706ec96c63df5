"""Shared fixtures: the chapter's models exported once a session."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import onnx.parser
import pytest

from onnx_attest.export import export_entry
from onnx_attest.export.artifact import Artifact
from onnx_attest.models import CATALOGUE
from onnx_attest.verify.cli import main
from onnx_attest.verify.runtimes.isolated import kept

CHAPTER = ("sdpa", "self-attention", "mha", "causal", "sdpa-naive", "sdpa-unscaled")
"""The models that the fast tests export; all others are swept by tests/test_catalogue.py, which is slow."""


@pytest.fixture(scope="session", autouse=True)
def runtimes_stay() -> Iterator[None]:
    """Import each runtime once: hundreds of tests verify something, and need its process."""
    with kept():
        yield


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Artifact]:
    """Every artifact of the chapter's models by the stem of its file, `mha-attention-23` for example."""
    folder: Path = tmp_path_factory.mktemp("exported")
    results = [result for entry in CATALOGUE if entry.name in CHAPTER
               for result in export_entry(entry, folder)]  # fmt: skip
    failures = [result for result in results if not isinstance(result, Artifact)]
    assert failures == []
    return {artifact.path.stem: artifact for artifact in results if isinstance(artifact, Artifact)}


@dataclass(frozen=True)
class Answer:
    """What a command answered: its exit code and both streams."""

    code: int
    out: str
    err: str

    def assert_refused(self, *words: str) -> None:
        """Bad input ends in one line on stderr that holds these words, exit 2, nothing on stdout."""
        assert (self.code, self.out) == (2, ""), self
        assert self.err.startswith("onnx-attest: error: "), self.err
        assert self.err.count("\n") == 1, self.err
        assert [word for word in words if word not in self.err] == [], self.err


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Answer]:
    """Run `onnx-attest` in this process; an exception that is not an exit is the traceback that must not be."""

    def run(*arguments: object) -> Answer:
        monkeypatch.setattr(sys, "argv", ["onnx-attest", *map(str, arguments)])
        monkeypatch.setenv("ONNX_ATTEST_TRACEBACK", "1")  # what nobody foresaw is no refusal
        capsys.readouterr()
        with pytest.raises(SystemExit) as exited:
            main()
        streams = capsys.readouterr()
        sys.stdout.write(streams.out)  # pytest shows it whole where the test fails, its own words are cut
        return Answer(int(exited.value.code or 0), streams.out, streams.err)

    return run


@pytest.fixture
def onnx_file(tmp_path: Path) -> Callable[..., Path]:
    """Write a graph, given in ONNX's text form without its header, to a file of this test."""

    def write(graph: str, name: str = "model.onnx", opset: int = 18) -> Path:
        path = tmp_path / name
        text = f'<ir_version: 10, opset_import: ["": {opset}]> {graph}'
        path.write_bytes(onnx.parser.parse_model(text).SerializeToString())
        return path

    return write
