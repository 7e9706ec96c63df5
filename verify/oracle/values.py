"""What flows between the nodes of a graph: tensors, sequences of them, and nothing where an optional is empty."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from onnx_attest.verify.oracle.bounded import Bounded, exact


@dataclass(frozen=True, slots=True, eq=False)
class Listed:
    """A sequence of tensors. An optional is its content, or None."""

    items: tuple[Value, ...]


Value: TypeAlias = Bounded | Listed | None
Scope: TypeAlias = Mapping[str, Value]


def given(value: Any) -> Value:
    """Return what is fed to a graph as the oracle holds it: arrays, lists of them, None; what has a bound keeps it."""
    if isinstance(value, Bounded):
        return value
    if isinstance(value, (list, tuple)):
        return Listed(tuple(given(item) for item in value))
    return None if value is None else exact(np.asarray(value))
