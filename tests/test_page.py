"""report.html: the records' own numbers, nothing that a record says becomes markup, and it works in a browser."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from html import unescape
from html.parser import HTMLParser
from importlib.resources import files
from typing import Any

import msgspec
import pytest
from browser import axe, complaints, keys, opened
from test_report import (
    cell,
    environment,
    export,
    finding,
    headroom_record,
    known_failure,
    not_run,
    run,
    softmax,
    timing,
)

from onnx_attest.verify.findings import CODES
from onnx_attest.verify.records import AnyRecord, CaseRecord, Neighbour
from onnx_attest.verify.report.html import html
from onnx_attest.verify.report.html.data import KINDS
from onnx_attest.verify.report.html.markup import joined, link, tag
from onnx_attest.verify.report.html.packing import pack, unpack
from onnx_attest.verify.runtimes.chromium import Chromium

EVIL = '</script><script>document.title="owned"</script><img src=x onerror=alert(1)>&"\'\u202e'
ENTER, ESCAPE, TAB = "\ue007", "\ue00c", "\ue004"


def cases(count: int) -> list[CaseRecord]:
    return [
        CaseRecord(name=f"case-{n}", axes={"seq_len": n + 1}, logit_std=(0.3, 1.0, 3.0, 30.0)[n % 4], seed=n)
        for n in range(count)
    ]


def several() -> list[AnyRecord]:
    found: list[AnyRecord] = [environment(), export(), export(variant="decomposed", opset=18, sha256="ab")]
    for n, case in enumerate(cases(12)):
        ratio = 0.1 + n / 7
        gates = {"proof": {"max_err_over_tau": ratio}, "form": {"failed": 0.0}}
        failed = ratio > 1
        found.append(
            cell(
                case=case,
                gates=gates,
                verdict="failed" if failed else "passed",
                effective_bits=24 - n / 3,
                arithmetic="fp32",
                findings=("OA301",) if failed else (),
                worst_output="output",
                worst_index=(0, n),
                worst_actual="0.5",
                worst_expected="0.25",
            )
        )
        found.append(cell(case=case, variant="decomposed", opset=18, runtime="torch"))
        found.append(softmax(case=case, weight_err_over_limit=ratio, entropy_min=1.0 / (n + 1)))
    where: dict[str, Any] = {"model": "mha", "variant": "attention", "opset": 24, "dtype": "float32"}
    sides = (("here", "node_MatMul_5"), ("before", "node_Softmax_4"), ("behind", "node_Reshape_6"))
    where["around"] = tuple(
        Neighbour(side=side, node=node, operator=node.split("_")[1], value="v") for side, node in sides
    )
    found += [
        known_failure(),
        not_run(),
        headroom_record(),
        finding(blame="kernel", node="node_MatMul_5", runtime="ort-cpu", **where),
        timing(),
        timing(axes={"batch": 2, "seq_len": 512}, group=1),
        run(verdict="failed", exit_code=1),
    ]
    return found


def data_of(page: str, kind: str) -> dict[str, Any]:
    found = re.search(rf'<script type="application/json" id="data-{kind}">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    return dict(json.loads(found[1]))


# What is in it


@pytest.mark.parametrize("kind", KINDS)
def test_its_data_are_the_records_number_for_number(kind):
    records = several()
    plain = [msgspec.to_builtins(one) for one in records if isinstance(one, KINDS[kind])]
    assert unpack(data_of(html(records), kind)) == json.loads(msgspec.json.encode(plain))


def test_it_is_the_same_every_time():
    assert html(several()) == html(several())


@pytest.mark.parametrize(
    "rows",
    [
        [],
        [{"a": 1}],
        [{"a": {}}, {"a": {"x": 1.5}}, {"a": {"x": None, "y": {"z": [1]}}}],
        [{"a": n % 3, "b": f"v{n}", "c": None, "d": {"k": n / 7}} for n in range(20)],
        [{"a": n, "b": 1.0 if n % 2 else 1} for n in range(9)],
        [{"a": {"__proto__": n, "constructor": n + 1}} for n in range(9)],
    ],
)
def test_what_is_unpacked_is_what_was_packed(rows):
    packed = json.loads(json.dumps(pack(rows)))
    assert json.dumps(unpack(packed)) == json.dumps(rows)


def test_equal_values_are_written_once():
    reason = "a long message of a runtime" * 20
    assert len(json.dumps(pack([{"reason": reason, "n": n} for n in range(1000)]))) < 10_000


def test_a_number_that_is_not_finite_is_null_as_in_the_records():
    records = [cell(max_abs_err=math.inf, effective_bits=math.nan)]
    (row,) = unpack(data_of(html(records), "cell"))
    assert (row["max_abs_err"], row["effective_bits"]) == (None, None)


def test_each_code_that_occurs_is_explained_and_each_link_leads_somewhere():
    page = html(several())
    assert CODES["OA301"].why in unescape(page)
    ids = set(re.findall(r'\bid="([^"]+)"', page))
    assert set(re.findall(r'href="#([^"]+)"', page)) <= ids
    assert "code-OA302" not in ids


def test_the_verdict_comes_first_and_nothing_skipped_is_passed():
    page = html([not_run(), run(verdict="inconclusive", exit_code=3)])
    body = page[page.index("<h1>") :]
    assert body.index("inconclusive") < body.index("<main>")
    assert "#mark-passed" not in page


def head_of(records: list[AnyRecord]) -> str:
    found = re.search(r"<header>.*?</header>", html(records), re.DOTALL)
    assert found is not None
    return found[0]


def test_its_head_says_which_file_was_held_against_what_and_when():
    sha = "0123456789abcdef" * 4
    alone = [environment(), export(sha256=sha, reference="graph", size_bytes=1234), cell(artifact_sha256=sha)]
    said = head_of(alone)
    assert f'<abbr title="{sha}">0123456789ab</abbr>' in said
    assert "1,234 bytes" in said
    assert "held against its own graph in float64" in said
    assert alone[0].recorded_at in said
    assert " ".join(alone[0].command) in said
    absent = cell(artifact_sha256=sha, runtime="torch", verdict="skipped")
    assert "module" not in head_of([*alone, absent])
    assert "held against the module" in head_of([*alone, cell(artifact_sha256=sha, runtime="exporter")])


def test_its_head_names_a_few_of_many_files():
    said = head_of([export(sha256=f"{number:064}") for number in range(30)])
    assert said.count("<abbr") == 6
    assert "About 30 files" in said
    assert "and 24 more files" in said


def test_no_records_make_a_page():
    page = html([])
    assert "no run record: the run did not finish" in page.lower()


# Nothing that a record says becomes markup


class Elements(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def evil() -> list[AnyRecord]:
    """Records whose every text is an attack, and whose keys are as well."""
    where: dict[str, Any] = {"model": EVIL, "variant": EVIL, "dtype": EVIL, "runtime": EVIL}
    case = CaseRecord(name=EVIL, axes={EVIL: 3}, distribution=EVIL, mask=EVIL)
    gates: dict[str, dict[str, float | None]] = {EVIL: {EVIL: 1.0}, "proof": {"max_err_over_tau": 2.0}}
    bad = cell(
        **where, case=case, gates=gates, verdict="failed", reason=EVIL, known="", findings=("OA301", EVIL), worst_output=EVIL,
        worst_actual=EVIL, session={EVIL: EVIL}, nodes_by_provider={EVIL: 1}, runtime_version=EVIL, ran_as=EVIL, artifact_sha256=EVIL,
    )  # fmt: skip
    told = finding(
        **where, opset=24, code="OA301", message=EVIL, node=EVIL, blame=EVIL, next_step=EVIL, case=EVIL
    )
    script = known_failure(**where, known="javascript:alert(1)", reason=EVIL)
    shown = softmax(**where, case=case, attention=EVIL, reason=EVIL, verdict="failed")
    machine = msgspec.structs.replace(environment(), cpu=EVIL, packages={EVIL: EVIL}, runtimes={EVIL: EVIL})
    times = [timing(**where, axes={EVIL: n}, group=n) for n in (32, 64)]
    return [machine, bad, told, script, shown, *times, run(verdict="failed", exit_code=1, reason=EVIL)]


def test_no_text_of_a_record_becomes_an_element_or_an_address():
    page = html(evil())
    elements = Elements()
    elements.feed(page)
    names = [name for name, _ in elements.found]
    assert "img" not in names
    assert names.count("script") == len(KINDS) + 2
    assert not any(key.startswith("on") for _, attributes in elements.found for key in attributes)
    addresses = [attributes["href"] or "" for _, attributes in elements.found if "href" in attributes]
    assert all(address.startswith(("#", "https://")) for address in addresses)
    assert "\u202e" not in re.sub(r'<script type="application/json".*?</script>', "", page, flags=re.DOTALL)


def test_a_policy_lets_no_other_script_run_and_nothing_be_fetched():
    page = html(evil())
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', page)
    assert policy is not None
    assert "default-src &#x27;none&#x27;; script-src &#x27;sha256-" in policy[1]
    assert "src=" not in page.replace("src=x onerror", "")
    assert "@import" not in page


def test_markup_is_escaped_by_construction():
    assert tag("p", "<b>", tag("i", "&"), title='"') == '<p title="&quot;">&lt;b&gt;<i>&amp;</i></p>'
    assert tag("a", hidden=True, href=None, data_x=3) == '<a hidden data-x="3"></a>'
    assert joined(["<", tag("br")], None, "\x00") == "&lt;<br>\ufffd"
    assert link("javascript:alert(1)", "<x>") == "&lt;x&gt;"


def test_scripts_parse_nothing_as_html():
    for file in files("onnx_attest.verify.report.html").joinpath("assets").iterdir():
        for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "http:"):
            assert word not in file.read_text(encoding="utf-8").replace("http://www.w3.org", ""), file.name


def test_two_thousand_cells_stay_far_below_ten_megabytes():
    records: list[AnyRecord] = []
    for n, case in enumerate(cases(2000)):
        ratio = math.sin(n) ** 2  # as many different digits as real numbers have
        gates = {"proof": {"max_err_over_tau": ratio}, "noise": {"rms_z": ratio / 3, "max_z": ratio / 7}}
        records += [cell(case=case, gates=gates, max_abs_err=ratio / 11), softmax(case=case, p_max=ratio)]
    assert len(html(records).encode()) < 2_000_000


# In a browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Chromium]:
    yield from opened()


@pytest.fixture
def page(browser, tmp_path):
    file = tmp_path / "report.html"
    file.write_text(html(several()), encoding="utf-8")
    browser.load(file.as_uri())
    yield browser
    assert complaints(browser) == []


def text(browser: Chromium, selector: str) -> list[str]:
    found = browser.script(
        "return [...document.querySelectorAll(arguments[0])].filter((e) => e.checkVisibility()).map((e) => e.textContent)",
        selector,
    )
    return list(found)


def test_it_loads_from_a_file_and_unpacks_the_records_numbers(page):
    assert page.script("return document.documentElement.dataset.ready") == "yes"
    assert text(page, ".verdict-line") == ["failed"]


def test_rows_are_filtered_and_sorted(page):
    rows = ".matrix tbody tr"
    assert len(text(page, rows)) == 3
    page.script(
        "const s = document.querySelector('.tools input'); s.value = 'decomposed'; s.dispatchEvent(new Event('input'));"
    )
    assert len(text(page, rows)) == 1
    assert text(page, ".tools output")[0] == "1 of 3 rows"
    page.script(
        "const s = document.querySelector('.tools input'); s.value = ''; s.dispatchEvent(new Event('input'));"
    )
    page.script("document.querySelector('.matrix thead button').click()")
    assert text(page, ".matrix tbody th") == ["mha", "mha", "naive"]
    page.script("document.querySelector('.matrix thead button').click()")
    assert text(page, ".matrix tbody th") == ["naive", "mha", "mha"]
    assert page.script("return document.querySelector('.matrix thead th').ariaSort") == "descending"


def test_an_entry_opens_its_cells_by_the_keyboard_and_a_cell_shows_all_of_it(page):
    page.script("document.querySelector('tr[data-variant=attention] button[data-runtime=ort-cpu]').focus()")
    keys(page, ENTER)
    assert text(page, "#entry-title") == ["mha attention 24 float32 on ort-cpu"]
    ratios = text(page, "dialog > .scroll tbody td:nth-child(3)")
    page.script("document.querySelector('dialog .legend summary').click()")
    assert text(page, "dialog .legend dt") == ["error/bound", "effective bits", "ran as"]
    assert all(text(page, "dialog .legend dd"))
    assert sorted(map(float, ratios)) == sorted(0.1 + n / 7 for n in range(12))
    page.script("document.querySelector('dialog tbody button').focus()")
    keys(page, ENTER)
    assert page.script("return document.activeElement.className") == "cell"
    shown = " ".join(text(page, "dialog .cell"))
    assert "actual 0.5, expected 0.25" in shown
    assert "node_MatMul_5" in shown
    assert text(page, ".chain .guilty") == ["kernel at fault"]
    assert text(page, "dialog a[href='#code-OA301']")
    assert {"node_Softmax_4", "node_Reshape_6"} <= set(text(page, "dialog .cell figure text"))
    assert page.script("return new Set([...document.querySelectorAll('[id]')].map((e) => e.id)).size") == (
        page.script("return document.querySelectorAll('[id]').length")
    )
    keys(page, ESCAPE)
    assert text(page, "#entry-title") == []
    assert page.script("return document.activeElement.dataset.runtime") == "ort-cpu"


def test_it_unpacks_as_python_does(browser, tmp_path):
    """The script is a module, so its own functions are out of reach: they are run apart from the page."""
    script = files("onnx_attest.verify.report.html").joinpath("assets", "unpack.js").read_text()
    browser.load("about:blank")
    for kind in KINDS:
        packed = data_of(html(several()), kind)
        assert browser.script(script + "return unpack(arguments[0])", packed) == unpack(packed)


def test_tables_are_sorted_by_number_and_unit(browser):
    script = files("onnx_attest.verify.report.html").joinpath("assets", "tables.js").read_text()
    browser.load("about:blank")
    ordered = ["failed", "passed", "-3", "12.9 us", "2.13 ms", "1 - 2.0e-05", "<1", "1", ">1", "4e+3", "abc", "n/a"]  # fmt: skip
    ask = "return arguments[0].sort((a, b) => compare(sortKey(a), sortKey(b)))"
    assert browser.script(script + ask, sorted(ordered)) == ordered


def test_an_attack_does_nothing(browser, tmp_path):
    file = tmp_path / "report.html"
    file.write_text(html(evil()), encoding="utf-8")
    browser.load(file.as_uri())
    browser.script("document.querySelector('.matrix tbody button').click()")
    browser.script("document.querySelector('dialog tbody button').click()")
    assert "<script>" in " ".join(text(browser, "dialog .cell"))
    assert browser.script("return document.title") == "onnx-attest: verification report"
    assert browser.script("return document.querySelectorAll('img').length") == 0
    assert complaints(browser) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("opened_entry", [False, True])
def test_a_checker_of_accessibility_finds_nothing(page, scheme, opened_entry):
    source = axe()
    page.command("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
    page.script("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    if opened_entry:
        page.script("document.querySelector('.matrix tbody button').click()")
        page.script("document.querySelector('dialog tbody button').click()")
    page.command("Runtime.evaluate", expression=source)
    page.command(
        "Runtime.evaluate",
        expression="axe.run().then((r) => { window.found = r.violations.map((v) => [v.id, v.impact, v.nodes[0].html]) })",
        awaitPromise=True,
    )
    assert page.script("return window.found") == []


def test_on_paper_it_is_dark_on_white_and_has_no_controls(page):
    dark = [{"name": "prefers-color-scheme", "value": "dark"}]
    page.command("Emulation.setEmulatedMedia", media="print", features=dark)
    assert page.script("return getComputedStyle(document.body).color") == "rgb(31, 35, 40)"
    assert text(page, ".tools") == []
    page.command("Emulation.setEmulatedMedia", media="", features=[])
