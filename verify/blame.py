"""Who is at fault: the verdicts of the parties on one case, each of which changes one thing (DESIGN.md section 4).

Here the parties are whole runtimes; the oracle and torch are always separate ones. Which node is at fault inside a
graph is not asked yet.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from onnx_attest.verify.records import CellRecord

EXPORTER, MODULE, OPTIMISED, UNOPTIMISED = "exporter", "torch", "ort-cpu", "ort-cpu-noopt"
"""The exporter is a party that runs nothing: its cells hold the module in float64 against the file's graph."""
COMPILED = "torch-compile"
ON_CUDA = "torch-cuda"
EAGER = (MODULE, ON_CUDA)
"""The module as it is written: its operators can be listened to."""
MODULES = (*EAGER, COMPILED)
"""What runs the module and no file: whether they are right says nothing of the file's graph."""
FUSION = "fusion"
"""Whatever made the file from another one."""


def blame(runtime: str, verdicts: Mapping[str, str]) -> str:
    """Return the party at fault where `runtime` failed, "" if the parties that ran do not tell.

    Args:
        runtime: the one that failed.
        verdicts: of each runtime that ran the same artifact on the same case.
    """
    if runtime == EXPORTER:
        return EXPORTER
    right = verdicts.get(EXPORTER) == "passed"  # the graph is the module's
    # If it is not, the module may be wrong as well, which shows when the export is mended.
    all_at_fault = EXPORTER if verdicts.get(EXPORTER) == "failed" else "module"
    ran = {name: verdict for name, verdict in verdicts.items() if verdict in ("passed", "failed", "errored")}
    onnx_runtimes = {name: verdict for name, verdict in ran.items() if name not in (*MODULES, EXPORTER)}
    all_failed = bool(onnx_runtimes) and all(verdict != "passed" for verdict in onnx_runtimes.values())
    none_failed = bool(onnx_runtimes) and all(verdict == "passed" for verdict in onnx_runtimes.values())
    if runtime == MODULE:
        return ("module" if right else EXPORTER) if none_failed else all_at_fault if all_failed else ""
    if runtime in (COMPILED, ON_CUDA):
        own = "compiler" if runtime == COMPILED else "kernel"
        return own if ran.get(MODULE) == "passed" else blame(MODULE, verdicts)
    if all_failed and MODULE in ran:
        return all_at_fault if ran[MODULE] != "passed" else "kernel" if right else EXPORTER
    if runtime == OPTIMISED and ran.get(UNOPTIMISED) == "passed":
        return "optimiser"
    return "kernel" if "passed" in onnx_runtimes.values() else ""


def blamed_cells(cells: Sequence[CellRecord]) -> dict[int, str]:
    """Return the party at fault for each failing cell of one artifact, by the cell's position."""
    by_case: dict[str, dict[str, str]] = {}
    for cell in cells:
        if cell.case is not None:
            by_case.setdefault(cell.case.id, {})[cell.runtime] = cell.verdict
    if any(cell.runtime == EXPORTER and cell.verdict == "failed" for cell in cells):
        for verdicts in (
            by_case.values()
        ):  # at large sizes the exporter is not asked: a graph that is wrong is so there too
            verdicts.setdefault(EXPORTER, "failed")
    return {
        index: blame(cell.runtime, by_case[cell.case.id])
        for index, cell in enumerate(cells)
        if cell.case is not None and cell.verdict in ("failed", "errored")
    }
