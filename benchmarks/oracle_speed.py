"""What the float64 oracle of attention costs beside attention itself, both in NumPy and in the same run.

    OPENBLAS_NUM_THREADS=1 python benchmarks/oracle_speed.py

The yardstick is a blocked online softmax in float64 that keeps no queries x keys array and computes the value alone;
the oracle gives value, bound, deviation and scale direction. Repetitions alternate, medians are compared. With more
than one BLAS thread the products of both sides shrink, and elementwise passes, which NumPy runs on one core, do not.
"""

from __future__ import annotations

import argparse
import statistics
import time
import tracemalloc
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from onnx_attest.verify.arithmetic import PROFILES, Arithmetic
from onnx_attest.verify.oracle.streaming import attend

Floats = NDArray[np.float64]

BLOCKS = ((128, 512), (128, 1024), (128, 2048), (256, 1024))
"""(queries, keys) of the yardstick's blocks; the fastest of them counts."""
MIB = 2.0**20


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--length", type=int, default=2048, help="queries, and keys")
    parser.add_argument("--features", type=int, default=64, help="of a query, and of a value")
    parser.add_argument("--logit-std", type=float, default=1.0)
    parser.add_argument("--repetitions", type=int, default=15)
    parser.add_argument("--profiles", nargs="+", default=["fp32"], choices=list(PROFILES))
    asked = parser.parse_args()
    q, k, v = inputs(asked.length, asked.features, asked.logit_std)
    scale = asked.features**-0.5
    block = min(BLOCKS, key=lambda size: min(seconds(lambda: blocked_attention(q, k, v, scale, size), 3)))
    print(f"yardstick in blocks of {block[0]} queries x {block[1]} keys")
    for name in asked.profiles:
        arithmetic = PROFILES[name]
        difference = np.abs(
            oracle(q, k, v, scale, arithmetic) - blocked_attention(q, k, v, scale, block)
        ).max()
        plain, full = alternating(
            lambda: blocked_attention(q, k, v, scale, block),
            lambda a=arithmetic: oracle(q, k, v, scale, a),  # type: ignore[misc]
            asked.repetitions,
        )
        ratios = sorted(b / a for a, b in zip(plain, full, strict=True))
        print(
            f"{name}: attention {1e3 * statistics.median(plain):.1f} ms, "
            f"oracle {1e3 * statistics.median(full):.1f} ms, "
            f"ratio of medians {statistics.median(full) / statistics.median(plain):.2f}, "
            f"of pairs {ratios[len(ratios) // 4]:.2f} to {ratios[3 * len(ratios) // 4]:.2f} (quartiles); "
            f"values differ by {difference:.1e}"
        )
    for length in (asked.length, 2 * asked.length):
        print(memory(inputs(length, asked.features, asked.logit_std), scale, block))


def memory(operands: tuple[Floats, Floats, Floats], scale: float, block: tuple[int, int]) -> str:
    """Return a line with the peak memory of both."""
    q, k, v = operands
    attention_peak = peak_bytes(lambda: blocked_attention(q, k, v, scale, block))
    oracle_peak = peak_bytes(lambda: oracle(q, k, v, scale, PROFILES["fp32"]))
    return (
        f"n = {len(k)}: peak memory of attention {attention_peak / MIB:.1f} MiB, "
        f"of the oracle {oracle_peak / MIB:.1f} MiB; n x n in float64 would be {8 * len(q) * len(k) / MIB:.0f} MiB"
    )


def inputs(length: int, features: int, logit_std: float) -> tuple[Floats, Floats, Floats]:
    """Return q, k, v (length, features) as float32 stores them, taken to float64."""
    rng = np.random.default_rng(0)
    gains = (logit_std**0.5, logit_std**0.5, 1.0)
    drawn = (rng.standard_normal((length, features)) * gain for gain in gains)
    q, k, v = (array.astype(np.float32).astype(np.float64) for array in drawn)
    return q, k, v


def blocked_attention(q: Floats, k: Floats, v: Floats, scale: float, block: tuple[int, int]) -> Floats:
    """Return attention (queries, d_v) by an online softmax over blocks, every large array allocated once."""
    rows, columns = block
    output, scaled = np.empty((len(q), v.shape[1])), q * scale
    transposed = np.ascontiguousarray(k.T)
    scores, product = np.empty((rows, columns)), np.empty((rows, v.shape[1]))
    for start in range(0, len(q), rows):
        queries = scaled[start : start + rows]
        result = output[start : start + rows]
        count = len(queries)
        result[:] = 0.0
        top, total = np.full((count, 1), -np.inf), np.zeros((count, 1))
        for first in range(0, len(k), columns):
            keys = slice(first, min(first + columns, len(k)))
            weights = scores.ravel()[: count * (keys.stop - first)].reshape(count, -1)
            np.matmul(queries, transposed[:, keys], out=weights)
            new_top = np.maximum(top, weights.max(1, keepdims=True))
            weights -= new_top
            np.exp(weights, out=weights)
            if first:
                rescale = np.exp(top - new_top)
                total *= rescale
                result *= rescale
            total += weights.sum(1, keepdims=True)
            result += np.matmul(weights, v[keys], out=product[:count])
            top = new_top
        result /= total
    return output


def oracle(q: Floats, k: Floats, v: Floats, scale: float, arithmetic: Arithmetic) -> Floats:
    """Return the oracle's value; bound, deviation and direction come with it."""
    return attend(q, k, v, arithmetic, scale=scale).value


def seconds(call: Callable[[], object], repetitions: int) -> list[float]:
    """Return the time of each repetition."""
    times = []
    for _ in range(repetitions):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return times


def alternating(
    first: Callable[[], object], second: Callable[[], object], repetitions: int
) -> tuple[list[float], list[float]]:
    """Return the times of both, taken in turns so that what else the machine does falls on both."""
    pairs = [(seconds(first, 1)[0], seconds(second, 1)[0]) for _ in range(repetitions)]
    return [pair[0] for pair in pairs], [pair[1] for pair in pairs]


def peak_bytes(call: Callable[[], object]) -> int:
    """Return the most memory that Python and NumPy held at once during a call, inputs not counted."""
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


if __name__ == "__main__":
    main()
