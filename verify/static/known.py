"""What a manifest says that a graph does not: for the rules."""

from __future__ import annotations

from typing import Any

from onnx_attest.export.artifact import Artifact


def known_of(artifact: Artifact) -> dict[str, Any]:
    """Return the declared policy for rows without any key, and the sizes that were traced, as `static_findings` takes them."""
    if artifact.manifest is None:
        return {}
    contract = artifact.manifest.contract
    return {"empty_rows": contract.empty_rows, "traced": dict(contract.traced)}
