"""Who differs locates the cause."""

from __future__ import annotations

import pytest

from onnx_attest.verify.blame import blame

ALL = ("torch", "ort-cpu", "ort-cpu-noopt", "onnx-reference")


def verdicts(*failing: str, absent: tuple[str, ...] = ()) -> dict[str, str]:
    return {name: "skipped" if name in absent else "failed" if name in failing else "passed" for name in ALL}


@pytest.mark.parametrize(
    ("runtime", "seen", "party"),
    [
        ("ort-cpu", verdicts("ort-cpu", "ort-cpu-noopt", "onnx-reference"), "exporter"),
        ("torch", verdicts("torch"), "exporter"),
        ("ort-cpu", verdicts(*ALL), "module"),
        ("torch", verdicts(*ALL), "module"),
        ("ort-cpu", verdicts(*ALL) | {"exporter": "failed"}, "exporter"),
        ("torch", verdicts(*ALL) | {"exporter": "failed"}, "exporter"),
        ("torch", verdicts(*ALL) | {"exporter": "passed"}, "module"),
        ("ort-cpu", verdicts("ort-cpu"), "optimiser"),
        ("ort-cpu-noopt", verdicts("ort-cpu", "ort-cpu-noopt"), "kernel"),
        ("onnx-reference", verdicts("onnx-reference"), "kernel"),
        # Without the module, agreement of all runtimes tells nothing.
        ("ort-cpu", verdicts(*ALL[1:], absent=("torch",)), ""),
    ],
)
def test_blame(runtime, seen, party):
    assert blame(runtime, seen) == party


@pytest.mark.parametrize(
    ("failing", "party"), [(("torch-compile",), "compiler"), (("torch-compile", *ALL), "module")]
)
def test_compiled_module_is_no_runtime_of_the_file(failing, party):
    seen = verdicts(*failing) | {"torch-compile": "failed"}
    assert blame("torch-compile", seen) == party


def test_compiled_module_that_is_right_does_not_clear_the_exporter():
    seen = verdicts("ort-cpu", "ort-cpu-noopt", "onnx-reference") | {"torch-compile": "passed"}
    assert blame("ort-cpu", seen) == "exporter"


def test_an_error_counts_as_a_failure():
    seen = verdicts() | {"ort-cpu": "errored", "ort-cpu-noopt": "errored", "onnx-reference": "errored"}
    assert blame("ort-cpu", seen) == "exporter"
