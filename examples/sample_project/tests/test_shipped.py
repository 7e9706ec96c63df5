"""The files that this project ships. Change: the fixture, to where your file comes from.

Which runtimes stands in pyproject.toml, where a test names none; a marker says more for a test, a class or, as
`pytestmark`, for a file. What is required runs in every test that it holds for, and is never skipped.
"""

from __future__ import annotations

import onnx
import pytest
from onnx import numpy_helper
from sample_project import export_to, shipped

from onnx_attest.verify import VerificationError

pytestmark = pytest.mark.onnx_attest(time_budget_s=120)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Return the exported file."""
    return export_to(tmp_path_factory.mktemp("model") / "shipped.onnx")


@pytest.mark.onnx_attest(require=["ort-cpu"])
def test_the_file_computes_what_the_module_computes(onnx_attest, model):
    onnx_attest(model, against=shipped())


@pytest.mark.parametrize("runtime", ["ort-cpu-noopt", "ort-cuda", "openvino-cpu"])
def test_on_each_runtime_by_itself(onnx_attest, model, runtime):
    """One that does not work here is skipped, with its reason."""
    onnx_attest(model, runtimes=[runtime], input_shapes={"x": (2, 33, 16)})


def test_a_file_with_another_scale_is_caught(onnx_attest, model, tmp_path):
    """Whether a test can fail is worth a test: the scores are scaled by 1/4.04 instead of 1/4."""
    changed = onnx.load(model.path)
    (scale,) = (tensor for tensor in changed.graph.initializer if numpy_helper.to_array(tensor).size == 1
                and abs(float(numpy_helper.to_array(tensor).ravel()[0])) in (4.0, 0.25))  # fmt: skip
    value = numpy_helper.to_array(scale)
    factor = 1.01 if float(value.ravel()[0]) == 4.0 else 1 / 1.01
    scale.CopyFrom(numpy_helper.from_array((value * factor).astype(value.dtype), scale.name))
    onnx.save(changed, tmp_path / "changed.onnx")
    with pytest.raises(VerificationError, match="failed"):
        onnx_attest(tmp_path / "changed.onnx", against=shipped())
