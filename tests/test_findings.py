"""Every code is explained, used, and means what the documentation says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from onnx_attest.errors import UsageError
from onnx_attest.verify import findings

ROOT = Path(__file__).parent.parent
SOURCES = [path for folder in ("models", "export", "verify") for path in (ROOT / folder).rglob("*.py")]


def codes_in_sources() -> set[str]:
    named = (re.findall(r"\bOA\d{3}\b", path.read_text()) for path in SOURCES if path.name != "findings.py")
    return {code for found in named for code in found}


def test_every_code_that_the_sources_name_has_a_page():
    assert codes_in_sources() <= set(findings.CODES)


def test_every_page_is_of_a_code_that_something_can_find():
    assert set(findings.CODES) <= codes_in_sources()


def test_documentation_is_the_table():
    """To write it anew: python -c "from onnx_attest.verify.findings import markdown; print(markdown(), end='')"."""
    assert (ROOT / "docs" / "findings.md").read_text() == findings.markdown()


@pytest.mark.parametrize("code", findings.CODES.values(), ids=lambda code: code.code)
def test_pages_are_whole_sentences(code):
    assert not code.title.endswith(".")
    assert all(text.endswith(".") for text in (code.why, code.example, code.remedy))


def test_lower_case_is_understood():
    assert findings.explain("oa401").code == "OA401"


def test_unknown_code_lists_the_known():
    with pytest.raises(UsageError, match="unknown code 'OA999'; there are OA101, "):
        findings.explain("OA999")
