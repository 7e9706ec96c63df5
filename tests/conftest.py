"""Shared fixtures: the catalogue exported once a session, and the arrays of small attentions."""

from __future__ import annotations

from pathlib import Path

import pytest

from onnx_attest.export import export_entry
from onnx_attest.export.artifact import Artifact
from onnx_attest.models import CATALOGUE


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Artifact]:
    """Every artifact of the catalogue by the stem of its file, `mha-attention-23` for example."""
    folder: Path = tmp_path_factory.mktemp("exported")
    results = [result for entry in CATALOGUE for result in export_entry(entry, folder)]
    failures = [result for result in results if not isinstance(result, Artifact)]
    assert failures == []
    return {artifact.path.stem: artifact for artifact in results if isinstance(artifact, Artifact)}
