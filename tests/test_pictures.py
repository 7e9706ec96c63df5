"""Pictures are drawn from records alone: well-formed, the same every time, and where the numbers say."""

from __future__ import annotations

import itertools
import math
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from onnx_attest.verify.claims.measured import Measured, recorded
from onnx_attest.verify.records import ClaimRecord, encode, read_records
from onnx_attest.verify.report import render, write_reports
from onnx_attest.verify.report.pictures import svg
from onnx_attest.verify.report.pictures.claims import pictures, weight_errors
from onnx_attest.verify.report.pictures.plot import Curve, Panel, plot
from onnx_attest.verify.report.pictures.weights import Weights, draw

SVG = "{http://www.w3.org/2000/svg}"
D_KS = (16, 64, 256, 1024)


def claim(number: int, runtime: str = "ort-cpu", **fields: Any) -> ClaimRecord:
    return ClaimRecord(**({"claim": number, "runtime": runtime, "verdict": "passed"} | fields))


def costs(runtime: str, power: float = 2.0) -> Iterator[ClaimRecord]:
    for form in ("written out", "fused"):
        n = (512.0, 1024.0, 2048.0)
        for unit, factor in (("fastest_s", 1e-8), ("peak_bytes", 4.0)):
            series = {"n": n, unit: tuple(factor * one**power for one in n)}
            setting = f"{form}, {'time' if unit == 'fastest_s' else 'memory'}"
            yield claim(2, runtime, setting=setting, series=series, measured={"exponent": power})


def scales(runtime: str, factor: float = 1.0) -> Iterator[ClaimRecord]:
    for d_k in D_KS:
        variance = {"variance": factor * d_k, "variance_over_d_k": factor, "variance_scaled": factor}
        yield claim(3, runtime, at=d_k, measured=variance | {"sd_of_the_estimate": 0.02})
        bare = {"p_max": 1 - 2 / d_k, "entropy": 20 / d_k, "jacobian_median": factor / d_k}
        scaled = {"p_max_scaled": 0.07, "entropy_scaled": 4.4, "jacobian_median_scaled": 0.13}
        yield claim(4, runtime, at=d_k, measured=bare | scaled)


def breaking(runtime: str) -> Iterator[ClaimRecord]:
    for dtype, largest in (("float32", 88.7), ("float16", 11.1)):
        for keys in (1, 64, 1024):
            score = largest - math.log(keys)
            yield claim(6, runtime, dtype=dtype, at=keys, measured={"breaks_at": score, "predicted": score})


def matrices(runtime: str) -> Iterator[ClaimRecord]:
    whole, causal = (0.5, 0.5, 0.25, 0.75), (1.0, 0.0, 0.25, 0.75)
    both = {"weights of the first": whole, "weights of the second": causal}
    yield claim(9, runtime, setting="two inputs of 2 tokens", series=both)
    for setting, weights in (("no mask", whole), ("causal mask", causal)):
        numbers = {"nodes": 2.0, "edges": float(sum(one > 0 for one in weights))}
        yield claim(11, runtime, setting=setting, series={"weights": weights}, measured=numbers)


def everything() -> list[ClaimRecord]:
    training = claim(
        4, "torch", setting="training, d_k 256", series={"loss": (2.0, 2.0), "loss_scaled": (1.0, 0.1)}
    )
    drawn = [
        record
        for runtime in ("torch", "ort-cpu")
        for make in (costs, scales, breaking, matrices)
        for record in make(runtime)
    ]
    return [*drawn, training]


def parsed(text: str) -> ET.Element:
    return ET.fromstring(text)


def words(root: ET.Element) -> list[str]:
    return [element.text or "" for element in root.iter(f"{SVG}text")]


@pytest.mark.parametrize("number", sorted(pictures(everything())))
def test_a_picture_is_well_formed_and_says_what_it_shows(number):
    picture = pictures(everything())[number]
    root = parsed(picture.svg)
    assert root.get("role") == "img"
    title, description = root.find(f"{SVG}title"), root.find(f"{SVG}desc")
    assert title is not None
    assert description is not None
    assert root.get("aria-labelledby") == f"{title.get('id')} {description.get('id')}"
    assert picture.alt in (description.text or "")
    assert "(prefers-color-scheme:dark)" in (root.findtext(f"{SVG}style") or "")
    assert not {"nan", "inf", "None"} & set(picture.svg.replace('"', " ").replace(",", " ").split())


@pytest.mark.parametrize("number", sorted(pictures(everything())))
def test_nothing_is_drawn_outside_of_a_picture(number):
    root = parsed(pictures(everything())[number].svg)
    _, _, width, height = map(float, (root.get("viewBox") or "").split())
    for element in root.iter():
        for across, down in (("x", "y"), ("cx", "cy"), ("x1", "y1"), ("x2", "y2")):
            if element.get(across) is not None and element.get(down) is not None:
                assert 0 <= float(element.get(across, "")) <= width, element.attrib
                assert 0 <= float(element.get(down, "")) <= height, element.attrib


def test_pictures_are_the_same_from_records_that_were_written_and_read(tmp_path):
    path = tmp_path / "records.jsonl"
    path.write_bytes(encode(everything()))
    again = pictures(read_records(path))
    assert again == pictures(everything())
    assert set(again) == {2, 3, 4, 6, 9, 11}
    ids = [
        element.get("id") for one in again.values() for element in parsed(one.svg).iter() if element.get("id")
    ]
    assert len(ids) == len(set(ids))  # they may stand on one page


def test_what_has_no_numbers_has_no_picture():
    assert pictures([]) == {}
    assert pictures([claim(number, verdict="skipped", reason="no device") for number in range(1, 13)]) == {}
    nothing = [
        msgspec.structs.replace(one, series={"n": (512.0, 1024.0), "peak_bytes": (0.0, 8.0)})
        for one in costs("x")
    ]
    assert pictures(nothing) == {}  # a logarithm of nothing


def test_series_with_nan_are_not_recorded():
    record = recorded(11, "x", Measured({"edges": math.nan}), "no mask", {"weights": (0.5, math.nan)})
    assert (record.series, record.measured) == ({}, {"edges": None})
    assert recorded(11, "x", Measured({}), "", {"weights": (0.5, 1)}).series == {"weights": (0.5, 1.0)}


def dots(root: ET.Element, kind: str) -> list[tuple[float, float]]:
    circles = [element for element in root.iter(f"{SVG}circle") if element.get("class") == kind]
    return [(float(element.get("cx", "")), float(element.get("cy", ""))) for element in circles]


def test_a_power_is_a_straight_line_on_logarithmic_axes():
    points = tuple((float(2**k), float(3 * 4**k)) for k in range(1, 7))
    panel = Panel("costs", "n", (Curve("a", "b", points),), (2.0, 4.0))
    root = parsed(plot("p", "t", "d", (panel,)))
    places = dots(root, "c0")[: len(points)]
    steps = {(round(b[0] - a[0], 1), round(b[1] - a[1], 1)) for a, b in itertools.pairwise(places)}
    assert len(places) == len(points)
    assert max(x for x, _ in steps) - min(x for x, _ in steps) < 0.2
    assert max(y for _, y in steps) - min(y for _, y in steps) < 0.2
    assert all(x > 0 > y for x, y in steps)
    assert {"10", "100", "1000"} <= set(words(root))


def test_bytes_are_labelled_in_powers_of_two():
    small = [
        msgspec.structs.replace(one, series={"n": (512.0, 1024.0), "peak_bytes": (2.0**18, 2.0**24)})
        for one in costs("x")
    ]
    assert {"256 KiB", "1 MiB", "16 MiB"} <= set(words(parsed(pictures(small)[2].svg)))


def test_runtimes_that_draw_one_line_share_it_and_others_do_not():
    alike = [*scales("torch"), *scales("ort-cpu", 1.001), *scales("wrong", 1.2)]
    shown = words(parsed(pictures(alike)[3].svg))
    assert "torch, ort-cpu" in shown
    assert "wrong" in shown
    assert {"without the scale", "with the scale", "expected"} <= set(shown)


def test_a_heat_map_shows_each_weight_as_dark_as_it_is():
    root = parsed(draw("w", "t", "d", [Weights("m", ((0.5, 0.0), (0.2, 0.4)))]))
    cells = [one for one in root.iter(f"{SVG}rect") if one.get("class") == "box"]
    assert [float(one.get("fill-opacity", "")) for one in cells] == [1.0, 0.0, 0.4, 0.8]
    assert {"0.50", "0.20", "0.40"} <= set(words(root))
    white = [one.text for one in root.iter(f"{SVG}text") if one.get("class") == "small over"]
    assert white == ["0.50", "0.40"]


def test_errors_of_weights_are_those_of_the_records():
    exact = (0.5, 0.5, 0.25, 0.75)
    series = {"weights": (0.5, 0.5 + 2.0**-23, 0.25 - 2.0**-24, 0.75), "exact weights": exact}
    root = parsed(weight_errors([claim(11, setting="no mask", series=series)])["ort-cpu"])
    cells = [one for one in root.iter(f"{SVG}rect") if one.get("class") == "box"]
    assert [float(one.get("fill-opacity", "")) for one in cells] == [0.0, 1.0, 0.5, 0.0]
    assert {"2.00", "1.00", "no mask"} <= set(words(root))
    assert weight_errors([claim(11, series={"weights": exact})]) == {}


def test_a_graph_has_an_edge_for_each_weight_and_a_loop_for_each_token_that_sees_itself():
    root = parsed(draw("w", "t", "d", [Weights("m", ((0.5, 0.0), (0.2, 0.8)), as_graph=True)]))
    ways = [one.get("d", "") for one in root.iter(f"{SVG}path")]
    assert sum("C" in way for way in ways) == 2
    assert sum("Q" in way for way in ways) == 1


def test_names_cannot_break_a_picture():
    odd = [msgspec.structs.replace(one, runtime='<b>&"x"') for one in scales("x")]
    assert '<b>&"x"' in words(parsed(pictures(odd)[3].svg))
    assert (
        ET.fromstring(svg.text(0, 0, "a\x01\u202eb<")).text == "a\ufffd\ufffdb<"
    )  # XML has no control characters
    assert svg.fixed(-0.001) == "0"
    assert svg.fixed(12.345) in ("12.34", "12.35")


def test_the_report_has_them_beside_the_page_that_shows_them(tmp_path):
    folder = tmp_path / "report"
    write_reports(everything(), folder)
    page = (folder / "claims.md").read_text()
    for name in render(everything()):
        if name.startswith("pictures/"):
            assert f"]({name})" in page
            assert (folder / name).is_file()
    assert page.index("](pictures/claim-03.svg)") > page.index("## 3.")
    write_reports([claim(5)], folder)  # a folder with pictures is a report, and is replaced whole
    assert not (folder / "pictures").exists()
    assert "](pictures/" not in (folder / "claims.md").read_text()
