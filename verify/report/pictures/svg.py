"""SVG as text: a document with a title, a description and colours for light and dark, and the few elements it is made of.

No library: an element is a line of text, and what a library would add (interaction, fonts, themes) is not wanted here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from html import escape as as_html

from onnx_attest.verify.report.formats import printable

INK = "ink"
"""Class of what has the colour of text."""
COLOURS = 6
"""Classes c0 to c5; told apart in light and dark, and by those who see two of the three primary colours.

The first four are of Okabe and Ito's palette (2008), darker or lighter so that each stands out from the page.
"""
_LIGHT = ("#0072b2", "#c44e00", "#00795a", "#9a4f8f", "#7d6500", "#4b5563")
_DARK = ("#56b4e9", "#ff9a4d", "#2fc79e", "#e09fd0", "#f0e442", "#aab2bd")
_BOX = ("#2563b8", "#1f6feb")
"""Of a weight of 1; less of it is the same colour, thinner."""


def _rules(ink: str, page: str, colours: Iterable[str], box: str) -> str:
    """Return the rules of one scheme; all of them are of this class, since a picture may stand inside a page."""
    rules = [f".oa{{color:{ink}}}", f".oa .page{{fill:{page}}}", f".oa .box{{fill:{box};stroke:{box}}}"]
    rules += [f".oa .c{index}{{stroke:{colour};fill:{colour}}}" for index, colour in enumerate(colours)]
    return "".join(rules)


_STYLE = (
    ".oa{font:13px system-ui,-apple-system,'Segoe UI',Helvetica,Arial,sans-serif}"
    ".oa text{fill:currentColor;stroke:none}.oa .head{font-size:15px;font-weight:600}.oa .small{font-size:11px}"
    ".oa .ink{stroke:currentColor;fill:currentColor}.oa .grid{stroke:currentColor;stroke-opacity:.15}"
    ".oa polyline.curve{fill:none}.oa line.curve{stroke-width:2}.oa .over{fill:#ffffff!important}.oa rect.bar{stroke:none}"
    ".oa .dashed{stroke-dasharray:7 4}.oa .dotted{stroke-dasharray:1.5 4}"
    + _rules("#1f2328", "#ffffff", _LIGHT, _BOX[0])
    + f"@media screen and (prefers-color-scheme:dark){{{_rules('#e6edf3', '#0d1117', _DARK, _BOX[1])}}}"
)


def document(name: str, title: str, description: str, size: tuple[float, float], body: Iterable[str]) -> str:
    """Return a whole picture.

    Args:
        name: of the picture, unlike that of any other on the same page.
        title: what a screen reader says, and a tooltip shows.
        description: what is to be seen, in words.
        size: width and height.
        body: elements.
    """
    width, height = size
    opening = (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="oa" viewBox="0 0 {fixed(width)} {fixed(height)}" '
        f'width="{fixed(width)}" height="{fixed(height)}" role="img" aria-labelledby="{name}-title {name}-desc">'
    )
    words = (
        f'<title id="{name}-title">{escape(title)}</title><desc id="{name}-desc">{escape(description)}</desc>'
    )
    page = rectangle(0, 0, width, height, "page")
    return "\n".join((opening, words, f"<style>{_STYLE}</style>", page, *body, "</svg>\n"))


def fixed(number: float) -> str:
    """Return a coordinate to a hundredth, so that the last bit of a logarithm changes no picture."""
    return f"{round(number, 2) + 0.0:.2f}".rstrip("0").rstrip(".")


def text(
    x: float, y: float, words: str, *, anchor: str = "start", kind: str = "", turned: bool = False
) -> str:
    """Return text; `kind` is a class, `turned` reads upwards."""
    turn = f' transform="rotate(-90 {fixed(x)} {fixed(y)})"' if turned else ""
    return f'<text x="{fixed(x)}" y="{fixed(y)}" text-anchor="{anchor}"{_class(kind)}{turn}>{escape(words)}</text>'


def line(x1: float, y1: float, x2: float, y2: float, kind: str = INK) -> str:
    """Return a straight line."""
    return f'<line x1="{fixed(x1)}" y1="{fixed(y1)}" x2="{fixed(x2)}" y2="{fixed(y2)}"{_class(kind)}/>'


def curve(points: Iterable[tuple[float, float]], kind: str, width: float = 2.0) -> str:
    """Return a line through points."""
    joined = " ".join(f"{fixed(x)},{fixed(y)}" for x, y in points)
    return f'<polyline points="{joined}"{_class(f"curve {kind}")} stroke-width="{fixed(width)}"/>'


def dot(x: float, y: float, radius: float, kind: str) -> str:
    """Return a filled circle."""
    return f'<circle cx="{fixed(x)}" cy="{fixed(y)}" r="{fixed(radius)}"{_class(kind)}/>'


def rectangle(
    x: float, y: float, width: float, height: float, kind: str, opacity: float | None = None
) -> str:
    """Return a filled rectangle."""
    shade = "" if opacity is None else f' fill-opacity="{opacity:.3f}" stroke-opacity="0.25"'
    return f'<rect x="{fixed(x)}" y="{fixed(y)}" width="{fixed(width)}" height="{fixed(height)}"{_class(kind)}{shade}/>'


def path(way: str, kind: str, width: float, opacity: float) -> str:
    """Return a curve that is not filled, by SVG's own path commands."""
    return (
        f'<path d="{way}"{_class(kind)} style="fill:none" stroke-width="{fixed(width)}" '
        f'stroke-opacity="{opacity:.3f}"/>'
    )


def ring(x: float, y: float, radius: float) -> str:
    """Return a circle in the colour of text, filled with that of the page."""
    return dot(x, y, radius, "page") + (
        f'<circle cx="{fixed(x)}" cy="{fixed(y)}" r="{fixed(radius)}" class="ink" style="fill:none"/>'
    )


def head(x: float, y: float, turn: float, size: float, kind: str, opacity: float) -> str:
    """Return an arrowhead whose tip is at a point; `turn` is the angle that it points to, in radians."""
    corners = (
        (x, y),
        *((x - size * math.cos(turn + side), y - size * math.sin(turn + side)) for side in (0.4, -0.4)),
    )
    joined = " ".join(f"{fixed(a)},{fixed(b)}" for a, b in corners)
    return f'<polygon points="{joined}"{_class(kind)} style="stroke:none" fill-opacity="{opacity:.3f}"/>'


def _class(kind: str) -> str:
    return f' class="{kind}"' if kind else ""


def escape(words: str) -> str:
    """Return text as it may stand in SVG: XML forbids control characters, escaped or not."""
    return as_html(printable(words))
