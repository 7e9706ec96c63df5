"""The format that a runtime keeps the exponentials of a softmax in, seen from its weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

_ROUNDED_RIGHTLY = 0.99


def kept_in(weights: NDArray[Any], exact_weights: Sequence[NDArray[np.float64]]) -> str:
    """Return the format that the exponentials are kept in, seen from weights of a short dtype.

    Kept longer than the weights themselves, nearly every weight is the exact one rounded once; else the roundings of
    exponential, sum and quotient add up, and every second one is another number. The exact ones are given twice: from
    exact scores, and from scores stored in the short dtype.
    """
    dtype = weights.dtype.name
    if dtype not in ("float16", "bfloat16"):
        return str(dtype)
    rightly = max(float((weights == each.astype(weights.dtype)).mean()) for each in exact_weights)
    return "float32" if rightly >= _ROUNDED_RIGHTLY else str(dtype)
