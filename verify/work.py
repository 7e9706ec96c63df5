"""The kinds of work that the time of a run goes into, by which `onnx-attest run --profile` tells it apart."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

START, EXPORTER, SESSIONS, INFERENCE = "start", "exporter", "sessions", "inference"
ORACLE, GATES, ELSE = "oracle", "gates", "else"

KINDS: Mapping[str, str] = MappingProxyType(
    {
        EXPORTER: "torch.export and torch.onnx.export, of the file and of its double twin",
        INFERENCE: "runs of the runtimes, and of the module in float64",
        SESSIONS: "runtimes that open a file, or a copy of it that gives more",
        START: "of the process: imports, the runtimes' too, and modules built",
        ORACLE: "the graph in float64, with bounds and deviations",
        GATES: "outputs held against the oracle, and its correct implementations with them",
        ELSE: "all other work of a stage",
    }
)
"""What each is."""

NOT_OURS = (EXPORTER, INFERENCE)
"""What no verifier can do without: the exports, and the runtimes' own runs."""
