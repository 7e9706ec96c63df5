"""The float64 oracle on ONNX's own node cases of the operators it is meant to cover."""

from __future__ import annotations

import numpy as np
import pytest

from onnx_attest.verify import node_cases
from onnx_attest.verify.node_cases import covered, judge_case, left_out
from onnx_attest.verify.oracle.ops import OPERATORS

REFUSED = {
    # Ceil of a quotient that is whole within its rounding: the length of a Range, written out.
    "range_float_type_positive_delta_expanded",
    "range_float16_type_positive_delta_expanded",
    "range_bfloat16_type_positive_delta_expanded",
}
"""Cases that the oracle refuses by name, and why."""


@pytest.fixture(scope="module")
def cases():
    return node_cases.node_cases()


def names():
    return sorted(name for name, case in node_cases.node_cases().items() if not left_out(case))


@pytest.mark.parametrize("name", names())
def test_case_of_onnx(cases, name):
    with np.errstate(all="ignore"):
        outcome = judge_case(cases[name])
    assert outcome.status == ("unsupported" if name in REFUSED else "passed"), outcome.reason


def test_every_operator_of_the_list_is_there():
    assert set(covered()) <= set(OPERATORS)


def test_enough_cases_are_looked_at():
    """A renamed operator or dtype would empty the tests above without failing them."""
    assert len(names()) > 1400
