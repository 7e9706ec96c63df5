"""The doctor believes no runtime that only says it works: each has run a file of one node."""

from __future__ import annotations

import json

import numpy as np
import pytest

from onnx_attest.verify.doctor import diagnose
from onnx_attest.verify.runtimes.reference import ReferenceRuntime
from onnx_attest.verify.runtimes.registry import registered, select


class Session:
    def __init__(self, give) -> None:
        self.run = give


def runtime_that(give) -> ReferenceRuntime:
    class Odd(ReferenceRuntime):
        def open(self, artifact, *, model=None, threads=None):
            return Session(give)

    return Odd("odd")


def test_runtime_that_runs_is_usable():
    (found,) = diagnose(select(("onnx-reference",)))
    assert (found.usable, found.reason, found.install) == (True, "", "")


@pytest.mark.parametrize(
    ("give", "words"),
    [
        (lambda inputs: {"y": inputs["x"] + np.float32(1)}, "it is there, and copies 1.5 as [2.5]"),
        (lambda inputs: 1 / 0, "it is there, and does not run: division by zero"),
    ],
)
def test_runtime_that_only_says_it_works_is_not_usable(give, words):
    (found,) = diagnose([runtime_that(give)])
    assert (found.usable, found.reason) == (False, words)


def test_every_registered_runtime_is_listed_with_a_state_and_with_what_it_needs(command):
    listed = json.loads(command("doctor", "--json").out)["runtimes"]
    assert [one["runtime"] for one in listed] == [runtime.name for runtime in registered()]
    assert [one for one in listed if one["usable"] != (one["reason"] == "")] == []
    assert [one["runtime"] for one in listed if not one["usable"] and not one["install"]] == []
