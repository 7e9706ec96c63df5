"""HTML that is escaped by construction: text is text, and only what was made here is markup."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from onnx_attest.verify.report.formats import printable


class Markup(str):
    """Text that is HTML already. It is made by `tag`, `joined` and `trusted` only."""

    __slots__ = ()


Content = str | Iterable[str] | None
"""Text, or markup, or several of both, one after another; None is nothing."""
Attribute = str | int | bool | None
"""True is an attribute without a value, None and False are none."""

# Elements that have no end; the page uses these alone.
_VOID = frozenset({"meta", "input", "br"})


def tag(element: str, /, *content: Content, **attributes: Attribute) -> Markup:
    """Return an element; what is not `Markup` in its content is escaped, and so is every attribute.

    Args:
        element: its name, given by this package, never by a record.
        content: of the element.
        attributes: `class_` and `for_` are the attributes that Python has no names for, an inner `_` is a hyphen.
    """
    opening = "".join((element, *(_attribute(key, value) for key, value in attributes.items())))
    if element in _VOID:
        return Markup(f"<{opening}>")
    return Markup(f"<{opening}>{joined(*content)}</{element}>")


def joined(*content: Content) -> Markup:
    """Return the content one after another, escaped where it is text."""
    return Markup("".join(map(_markup, content)))


def trusted(text: str) -> Markup:
    """Return text that is markup already: pictures and assets of this package."""
    return Markup(text)


def link(address: str, words: str) -> Markup:
    """Return a link, or the words alone where the address is not one of the web: `javascript:` is an address too."""
    if not address.startswith(("https://", "http://")):
        return joined(words)
    return tag("a", words, href=address, rel="noreferrer")


def _markup(content: Content) -> str:
    if content is None:
        return ""
    if isinstance(content, Markup):
        return content
    if isinstance(content, str):
        return escape(printable(content))
    return "".join(map(_markup, content))


def _attribute(key: str, value: Attribute) -> str:
    if value is None or value is False:
        return ""
    name = key.rstrip("_").replace("_", "-")
    return f" {name}" if value is True else f' {name}="{escape(printable(str(value)))}"'
