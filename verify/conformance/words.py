"""What a runtime says, on one line that a person reads, and what of it is the same from case to case."""

from __future__ import annotations

import re

from onnx_attest.verify.report.formats import one_line

_LENGTH = 300
_NOISE = (
    # OpenVINO: where it was thrown, from the outermost function on.
    re.compile(r"^(?:\w+: )?(?:Exception from \S+:\d+: )+(?:Check 'false' failed at \S+:\d+: )?"),
    re.compile(
        r"^FrontEnd API failed with \w+: Model wasn't fully converted\. (?:Failed operations detailed log: -- )?"
    ),
    # ONNX Runtime: its status, said twice; the signature of the function that checks, before what it checks.
    re.compile(r"^JavaScriptError: "),
    re.compile(r"^(?:Can't create a session\.|failed to call OrtRun\(\)\.) ERROR_CODE: \d+, ERROR_MESSAGE: "),
    re.compile(r"^\w+: (?=\[ONNXRuntimeError\])"),
    re.compile(r"\[ONNXRuntimeError\] : \d+ : \w+ : "),
    re.compile(
        r"Non-zero status code returned while running (?P<node>\w+) node\. Name:'[^']*' Status Message: "
    ),
    re.compile(r"This is an invalid model\. In Node, .*? , Error "),
    re.compile(r"Load model from the model failed: ?"),
    re.compile(r"/\S*?(?P<place>[^/\s]+:\d+) \S.*?\)(?: const)?(?: \[with [^\]]*\])? (?=\S)"),
)
_NUMBER = re.compile(r"\[[-\d, ]*\]|-?\d+(?:\.\d+)?(?:e[-+]?\d+)?|\b(?:inf|nan)\b")


def shortened_words(text: str) -> str:
    """Return a runtime's words on one line, without what hides them, the end kept where they are long."""
    line = one_line(text)
    for pattern in _NOISE:
        line = pattern.sub(_replacement, line, count=1)
    if len(line) <= _LENGTH:
        return line
    half = _LENGTH // 2 - 3
    return f"{line[:half].rstrip()} ... {line[-half:].lstrip()}"


def _replacement(match: re.Match[str]) -> str:
    found = match.groupdict()
    if node := found.get("node"):
        return f"{node}: "
    return f"{place}: " if (place := found.get("place")) else ""


def kind_of_words(text: str) -> str:
    """Return the words without numbers, indices and lists of inputs: the same for cases that fail in the same way."""
    return one_line(_NUMBER.sub("#", text))
