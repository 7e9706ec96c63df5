"""What the machine can do at most: a product of two float32 matrices by the BLAS that NumPy has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

SIDE = 768
"""Of the matrices: 0.9 GFLOP, large enough for a BLAS to be near its best, and a few milliseconds."""
FLOPS = 2 * SIDE**3


def ready() -> Callable[[], NDArray[Any]]:
    """Return a call that multiplies the matrices, with the threads that the BLAS was given when this process was started."""
    draw = np.random.default_rng(0)
    left, right = (draw.standard_normal((SIDE, SIDE), dtype=np.float32) for _ in range(2))
    out = np.empty_like(left)
    return lambda: np.matmul(left, right, out=out)


def version() -> str:
    """Return which NumPy multiplies, with which BLAS."""
    config: Any = np.show_config(mode="dicts")
    blas = config.get("Build Dependencies", {}).get("blas", {})
    return f"NumPy {np.__version__}, {blas.get('name', 'its BLAS')} {blas.get('version', '')}".strip()
