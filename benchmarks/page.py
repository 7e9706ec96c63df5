"""How long report.html takes to be made and to open, and how large it is: `make bench-page`.

    python benchmarks/page.py RECORDS [--cells 2000] [--picture docs/pictures]

Each page is opened five times from its file in a headless Chromium; the times are the
browser's own, from the beginning of the navigation to the end of its load event, when the page can be used.
"""

from __future__ import annotations

import argparse
import base64
import shutil
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from onnx_attest.verify.records import AnyRecord, CellRecord, read_records
from onnx_attest.verify.report.html import html
from onnx_attest.verify.runtimes.chromium import Chromium

REPEATS = 5
_WHEN = "const n = performance.getEntriesByType('navigation')[0]; return [n.domInteractive, n.loadEventEnd]"
_ENTRY = """
const began = performance.now();
document.querySelector('.matrix tbody button').click();
document.querySelector('dialog tbody button').click();
return performance.now() - began;
"""


def with_cells(records: Sequence[AnyRecord], count: int) -> list[AnyRecord]:
    """Return the records with `count` of their cells, spread over all of them."""
    places = [place for place, record in enumerate(records) if isinstance(record, CellRecord)]
    kept = {places[index * len(places) // count] for index in range(min(count, len(places)))}
    return [
        record for place, record in enumerate(records) if place in kept or not isinstance(record, CellRecord)
    ]


def measure(records: Sequence[AnyRecord], browser: Chromium) -> str:
    """Return a line of the table."""
    began = time.perf_counter()
    page = html(records)
    made_s = time.perf_counter() - began
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "report.html")
        file.write_text(page, encoding="utf-8")
        opened, entries = [], []
        for _ in range(REPEATS):
            browser.load(file.as_uri())
            opened.append(browser.script(_WHEN))
            entries.append(browser.script(_ENTRY))
    cells = sum(isinstance(record, CellRecord) for record in records)
    parsed, loaded = (statistics.median(values) / 1000 for values in zip(*opened, strict=True))
    return (
        f"| {cells} | {len(page.encode()) / 1e6:.2f} | {made_s:.2f} | {parsed:.2f} | {loaded:.2f} | "
        f"{max(one[1] for one in opened) / 1000:.2f} | {statistics.median(entries) / 1000:.3f} |"
    )


def picture(records: Sequence[AnyRecord], browser: Chromium, folder: Path) -> None:
    """Write what a person sees first, light and dark: the pictures of the README."""
    folder.mkdir(parents=True, exist_ok=True)
    browser.command("Emulation.setDeviceMetricsOverride", width=1240, height=820, deviceScaleFactor=1, mobile=False)  # fmt: skip
    with tempfile.TemporaryDirectory() as made:
        file = Path(made, "report.html")
        file.write_text(html(records), encoding="utf-8")
        for scheme in ("light", "dark"):
            feature = {"name": "prefers-color-scheme", "value": scheme}
            browser.command("Emulation.setEmulatedMedia", features=[feature])
            browser.load(file.as_uri())
            taken = browser.command("Page.captureScreenshot", format="png")
            (folder / f"report-{scheme}.png").write_bytes(base64.b64decode(taken["data"]))


def main() -> None:
    """Measure the pages of a report, with some of its cells and with all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("records", type=Path)
    parser.add_argument("--cells", type=int, default=2000)
    parser.add_argument("--picture", type=Path, help="only write the first screen as PNG into this folder")
    arguments = parser.parse_args()
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        parser.exit(2, "chromium and chromedriver are needed\n")
    records = read_records(arguments.records)
    browser = Chromium(chromium, driver)
    if arguments.picture is not None:
        picture(records, browser, arguments.picture)
        browser.close()
        return
    print(
        "| cells | MB | made, s | parsed, s | opened, s (median) | opened, s (largest) | an entry and a cell, s |"
    )
    print("|---|---|---|---|---|---|---|")
    try:
        for held in (with_cells(records, arguments.cells), records):
            print(measure(held, browser), flush=True)
    finally:
        browser.close()


if __name__ == "__main__":
    main()
