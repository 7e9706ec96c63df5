"""Errors against their bounds, and what they are worth in bits: a strip for each runtime."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from onnx_attest.verify.arithmetic import PROFILES
from onnx_attest.verify.records import AnyRecord, CellRecord, finite
from onnx_attest.verify.report.grouping import grouped, of_kind
from onnx_attest.verify.report.pictures.strips import Strip, strips


def errors(records: Iterable[AnyRecord]) -> list[str]:
    """Return a picture for each dtype: the largest error over its bound, of each cell that ran."""
    return [
        strips(
            f"errors-{index}",
            f"Error against its bound, {dtype}",
            "largest error of a cell over its bound; above 1 is a proven defect",
            [_error(runtime, mine) for runtime, mine in _by_runtime(cells)],
            log=True,
        )
        for index, (dtype, cells) in enumerate(_by_dtype(records))
        if any((value := _over_tau(cell)) is not None and value > 0 for cell in cells)
    ]


def bits(records: Iterable[AnyRecord]) -> list[str]:
    """Return a picture for each dtype: the effective bits of each cell that has them."""
    return [
        strips(
            f"bits-{index}",
            f"Effective bits, {dtype}",
            "p - log2(RMS z); at the line, p, errors are those of the declared arithmetic",
            [_bits(runtime, mine) for runtime, mine in _by_runtime(cells)],
            log=False,
        )
        for index, (dtype, cells) in enumerate(_by_dtype(records))
        if any(finite(cell.effective_bits) is not None for cell in cells)
    ]


def _by_dtype(records: Iterable[AnyRecord]) -> Iterable[tuple[str, list[CellRecord]]]:
    ran = [cell for cell in of_kind(records, CellRecord) if cell.verdict not in ("skipped", "errored")]
    return grouped(ran, lambda cell: cell.dtype).items()


def _by_runtime(cells: Sequence[CellRecord]) -> Iterable[tuple[str, list[CellRecord]]]:
    return grouped(cells, lambda cell: cell.runtime).items()


def _over_tau(cell: CellRecord) -> float | None:
    return finite(cell.gates.get("proof", {}).get("max_err_over_tau"))


def _error(runtime: str, cells: Sequence[CellRecord]) -> Strip:
    return _strip(runtime, [(_over_tau(cell), cell.verdict) for cell in cells], 1.0)


def _bits(runtime: str, cells: Sequence[CellRecord]) -> Strip:
    p = {PROFILES[cell.arithmetic].bits for cell in cells if cell.arithmetic in PROFILES}
    limit = float(p.pop()) if len(p) == 1 else None
    return _strip(runtime, [(finite(cell.effective_bits), cell.verdict) for cell in cells], limit)


def _strip(runtime: str, values: Sequence[tuple[float | None, str]], limit: float | None) -> Strip:
    good, bad = (
        tuple(value for value, verdict in values if value is not None and (verdict == "passed") is passed)
        for passed in (True, False)
    )
    return Strip(runtime, good, bad, len(values) - len(good) - len(bad), limit)
