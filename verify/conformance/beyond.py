"""All cases beyond ONNX's suite, as an operator and expanded."""

from __future__ import annotations

from collections.abc import Sequence

from onnx_attest.verify.conformance.beyond_attention import attention_cases
from onnx_attest.verify.conformance.beyond_rows import row_cases
from onnx_attest.verify.conformance.building import expanded
from onnx_attest.verify.conformance.case import OPERATORS, Case


def beyond(operators: Sequence[str] = tuple(OPERATORS)) -> list[Case]:
    """Return our cases of these operators: each as an operator, then those that have a function body expanded."""
    own = [case for case in (*attention_cases(), *row_cases()) if case.operator in operators]
    return own + [written for case in own if (written := expanded(case)) is not None]
