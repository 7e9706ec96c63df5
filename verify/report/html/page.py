"""The page as a whole: report.html."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from importlib.resources import files

from onnx_attest.verify.records import AnyRecord
from onnx_attest.verify.report.html import sections
from onnx_attest.verify.report.html.data import data
from onnx_attest.verify.report.html.entries import matrix_of
from onnx_attest.verify.report.html.environment import environment
from onnx_attest.verify.report.html.findings import findings
from onnx_attest.verify.report.html.marks import shapes
from onnx_attest.verify.report.html.markup import Markup, joined, tag, trusted
from onnx_attest.verify.report.html.overview import cuda, overview

_SCRIPTS = ("unpack.js", "elements.js", "tables.js", "matrix.js", "cell.js", "dialog.js", "start.js")
_SECTIONS: tuple[tuple[str, str, Callable[[Sequence[AnyRecord]], Markup]], ...] = (
    ("matrix", "Exports and runtimes", lambda records: joined(matrix_of(records), cuda(records))),
    ("findings", "Findings", findings),
    ("accuracy", "Accuracy", sections.accuracy),
    ("softmax", "Softmax stability", sections.softmax),
    ("relations", "Relations", sections.relations),
    ("latency", "Latency", sections.latency),
    ("claims", "The chapter's statements", sections.claims),
    ("environment", "Environment", environment),
)
_HINT = "An entry of the matrix opens its cells. Headings of tables sort. What is folded is printed only where it is open."


def html(records: Iterable[AnyRecord]) -> str:
    """Return report.html, a pure function of the records: no network, no other file."""
    records = list(records)
    made = [(name, title, make(records)) for name, title, make in _SECTIONS]
    shown = [(name, title, content) for name, title, content in made if content]
    body = (
        shapes(),
        tag("a", "Skip to the matrix", href="#matrix", class_="skip"),
        tag("header", tag("h1", "Verification report"), overview(records), _contents(shown)),
        tag("main", tag("p", _HINT, class_="hint"), (_section(*one) for one in shown)),
        tag("dialog", "", id="entry", aria_labelledby="entry-title"),
        data(records),
        tag("script", trusted(_script()), type="module"),
    )
    whole = tag("html", _head(), tag("body", body), lang="en")
    return f"<!doctype html>\n{whole}\n"


def _contents(shown: Iterable[tuple[str, str, Markup]]) -> Markup:
    links = (tag("li", tag("a", title, href=f"#{name}")) for name, title, _ in shown)
    return tag("nav", tag("ul", links), aria_label="Contents")


def _section(name: str, title: str, content: Markup) -> Markup:
    return tag(
        "section", tag("h2", title, id=f"{name}-title"), content, id=name, aria_labelledby=f"{name}-title"
    )


def _head() -> Markup:
    digest = base64.b64encode(hashlib.sha256(_script().encode()).digest()).decode()
    # No script runs but ours, and nothing is fetched, whatever a name of a model holds.
    policy = f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
    return tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name_="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name_="color-scheme", content="light dark"),
        tag("title", "onnx-attest: verification report"),
        tag("style", trusted(_asset("page.css"))),
    )


@cache
def _script() -> str:
    return "\n".join(map(_asset, _SCRIPTS))


@cache
def _asset(name: str) -> str:
    return files("onnx_attest.verify.report.html").joinpath("assets", name).read_text(encoding="utf-8")
