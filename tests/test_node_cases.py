"""The float64 oracle on ONNX's own node cases of the operators it is meant to cover."""

from __future__ import annotations

import numpy as np
import pytest

from onnx_attest.verify import node_cases
from onnx_attest.verify.node_cases import covered, exceptions, judge_case, left_out
from onnx_attest.verify.oracle.ops import OPERATORS


@pytest.fixture(scope="module")
def cases():
    return node_cases.node_cases()


def names():
    return sorted(name for name, case in node_cases.node_cases().items() if not left_out(case))


@pytest.mark.parametrize("name", names())
def test_case_of_onnx(cases, name):
    with np.errstate(all="ignore"):
        outcome = judge_case(cases[name])
    expected = exceptions().get(name, "passed").partition(":")[0]
    assert outcome.status == expected, outcome.reason


def test_at_least_99_percent_of_the_cases_pass():
    assert len(exceptions()) <= 0.01 * len(names())
    assert set(exceptions()) <= set(names())


def test_every_operator_of_the_list_is_there():
    assert set(covered()) <= set(OPERATORS)


def test_enough_cases_are_looked_at():
    """A renamed operator or dtype would empty the tests above without failing them."""
    assert len(names()) > 1400
