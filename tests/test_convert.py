"""Variants for deployment: each is valid ONNX, costs what its format costs, and is told when it destroys something."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import onnx
import pytest

from onnx_attest.errors import UsageError
from onnx_attest.export.api import export_entry
from onnx_attest.export.artifact import Artifact, read_artifact
from onnx_attest.export.convert import convert
from onnx_attest.export.converter import KINDS
from onnx_attest.models.entry import resolve
from onnx_attest.verify.api import verify
from onnx_attest.verify.conversion.cost import calibration_of, cost, costs
from onnx_attest.verify.conversion.masked import masked
from onnx_attest.verify.records import RelationRecord
from onnx_attest.verify.signature import read_signature
from onnx_attest.verify.static.rules import static_findings

pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")


@pytest.fixture(scope="module")
def original(tmp_path_factory) -> Artifact:
    folder = tmp_path_factory.mktemp("original")
    made = [one for one in export_entry(resolve("mha"), folder) if isinstance(one, Artifact)]
    return next(one for one in made if "decomposed" in one.path.name)


@pytest.fixture(scope="module")
def converted(original, tmp_path_factory) -> dict[str, Artifact]:
    folder = tmp_path_factory.mktemp("converted")
    signature = read_signature(original)
    return {
        kind: convert(
            original, kind, folder / f"{kind}.onnx", calibration_of(signature, 1), masked(signature.model)
        )
        for kind in KINDS
    }


BITS = {
    "fp16": (8, 13),
    "fp16-softmax32": (8, 13),
    "int8-dynamic": (3, 8),
    "int8-static": (3, 8),
    "ort-fused": (22, math.inf),
}
"""What the formats have: 11 bits of a number in half precision, 8 of a code; a fusion multiplies constants in float32."""


@pytest.mark.parametrize("kind", KINDS)
def test_a_conversion_costs_what_its_format_costs(original, converted, kind):
    found = list(costs(read_signature(original), read_signature(converted[kind])))
    usual = [one.bits for one in found if "logit_std=2" in one.case and "empty-row" not in one.case]
    low, high = BITS[kind]
    assert low <= np.median(usual) <= high
    assert not any(one.misplaced for one in found if "empty-row" not in one.case)


@pytest.mark.parametrize("kind", KINDS)
def test_a_conversion_is_a_file_like_any_other(original, converted, kind):
    made = converted[kind]
    onnx.checker.check_model(str(made.path))
    manifest = read_artifact(made.path).manifest
    assert manifest.variant == f"decomposed-{kind}"
    assert manifest.sha256 == made.sha256 != original.sha256
    assert manifest.contract == original.manifest.contract


@pytest.mark.slow
def test_a_conversion_is_held_against_its_own_graph_and_not_against_the_formula(tmp_path):
    """The formula in float32 is what the original is to compute; half precision inside is another graph."""
    artifact = next(one for one in export_entry(resolve("sdpa"), tmp_path) if isinstance(one, Artifact))
    assert artifact.manifest.contract.specification
    made = convert(artifact, "fp16-softmax32", tmp_path / "half.onnx")
    assert made.manifest.contract.specification is None
    report = verify(made, runtimes=("ort-cpu",))
    assert {cell.verdict for cell in report.cells} == {"passed"}
    assert {record.verdict for record in report.records if isinstance(record, RelationRecord)} <= {
        "passed",
        "inconclusive",
        "skipped",
    }


@pytest.mark.parametrize("kind", ["fp16", "fp16-softmax32", "ort-fused"])
def test_runtimes_compute_it_right(converted, kind):
    report = verify(converted[kind], runtimes=("ort-cpu",), input_shapes={"X": (2, 9, 45)})
    verdicts = {cell.verdict for cell in report.cells if cell.case.mask != "empty-row"}
    assert verdicts == {"passed"}


@pytest.mark.slow
def test_int8_that_depends_on_masked_keys_is_told(converted):
    """The scale is that of the whole tensor, and masked keys are part of it."""
    report = verify(converted["int8-dynamic"], runtimes=("ort-cpu",))
    assert {cell.verdict for cell in report.cells if cell.case.mask != "empty-row"} == {"passed"}
    assert "OA406" in {item.code for item in report.findings}


def test_a_mask_that_overflows_half_precision_is_told(tmp_path):
    """-1e9 becomes an infinity or the lowest number of half precision; a row without any key shows which."""
    graph = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 18]> g (float[n, 8] q, float[m, 8] k, float[m, 8] v, float[n, m] mask) => (float[n, 8] y) '
        "<float s = {0.35355339}, float big = {-1e9}, int64[1] last = {-1}> { t = Transpose <perm = [1, 0]> (k) l = MatMul (q, t)"
        " c = Mul (l, s) h = Mul (mask, big) x = Add (c, h) p = Softmax <axis = -1> (x) y = MatMul (p, v) }"
    )
    onnx.save(graph, tmp_path / "m.onnx")
    made = convert(read_artifact(tmp_path / "m.onnx"), "fp16", tmp_path / "half.onnx")
    found = {item.code for item in static_findings(onnx.load(made.path))}
    assert found & {"OA427", "OA428"}


def test_a_scale_that_swallows_the_logits_is_told_with_the_node(original, converted, tmp_path):
    """Calibrated with the number that hides keys, as ONNX Runtime's quantiser does by itself."""
    swallowed = convert(
        original, "int8-static", tmp_path / "raw.onnx", calibration_of(read_signature(original), 1)
    )
    model = onnx.load(swallowed.path)
    (found,) = [item for item in static_findings(model) if item.code == "OA432"]
    (node,) = [node for node in model.graph.node if node.name == found.node]
    (reader,) = [other for other in model.graph.node if node.output[0] in other.input]
    (softmax,) = [other for other in model.graph.node if reader.output[0] in other.input]
    assert (node.op_type, softmax.op_type, found.severity) == ("QuantizeLinear", "Softmax", "error")
    assert "hides keys by -3.4e+38, which is no logit" in found.message
    report = verify(swallowed, runtimes=("ort-cpu",), input_shapes={"X": (2, 9, 45)})
    assert report.verdict == "failed", "runtimes compute what it says, and it says nothing"
    for kind in KINDS:
        assert "OA432" not in {item.code for item in static_findings(onnx.load(converted[kind].path))}


QUANTISED = """g (float[n, 8] q, float[m, 8] k, float[m, 8] v, bool[n, m] mask) => (float[n, 8] y)
<float s = {0.35355339}, float low = {LOW}, float step = {STEP}, KIND zero = {100}, float wstep = {WSTEP}, uint8 wzero = {0}> {
  t = Transpose <perm = [1, 0]> (k)  l = MatMul (q, t)  BEFORE
  c = QuantizeLinear (x, step, zero)  d = DequantizeLinear (c, step, zero)  AFTER
  wc = QuantizeLinear (p, wstep, wzero)  w = DequantizeLinear (wc, wstep, wzero)  y = MatMul (w, v) }"""
MASKED = ("h = Mul (l, s)  x = Where (mask, h, low)", "p = Softmax <axis = -1> (d)")
SCALED_LATER = ("x = Identity (l)", "h = Mul (d, s)  z = Where (mask, h, low)  p = Softmax <axis = -1> (z)")


@pytest.mark.parametrize(
    ("parts", "step", "kind", "weights", "told"),
    [
        (MASKED, "1.3e36", "uint8", 0.0039, "x_Q"),
        (MASKED, "39.2", "uint8", 0.0039, "x_Q"),  # -1e4 in 255 steps
        (MASKED, "5.55", "uint8", 0.0039, "x_Q"),  # 8 ln 2 is 5.545
        (MASKED, "5.54", "uint8", 0.0039, ""),
        (MASKED, "5.55", "uint16", 0.0039, ""),
        (MASKED, "11.1", "uint16", 0.0039, "x_Q"),
        (SCALED_LATER, "15", "uint8", 0.0039, ""),  # times 0.354 it is 5.3
        (SCALED_LATER, "16", "uint8", 0.0039, "x_Q"),
        (MASKED, "0.1", "uint8", 0.0039, ""),
        (MASKED, "0.1", "uint8", 1.9, ""),
        (MASKED, "0.1", "uint8", 2.0, "p_Q"),
    ],
)
def test_a_step_of_codes_is_told_from_where_nothing_is_left(parts, step, kind, weights, told):
    text = QUANTISED.replace("BEFORE", parts[0]).replace("AFTER", parts[1]).replace("WSTEP", str(weights))
    text = text.replace("STEP", step).replace("KIND", kind).replace("LOW", "-10000")
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 21]> {text}')
    for node in model.graph.node:
        if node.op_type == "QuantizeLinear":
            node.name = f"{node.input[0]}_Q"
    assert [item.node for item in static_findings(model) if item.code == "OA432"] == [told] * bool(told)


@pytest.mark.slow
def test_bfloat16_is_exported_anew_from_the_module_of_the_file(original, command, tmp_path):
    answer = command("convert", original.path, "--to", "bf16", "--against", "mha", "-o", tmp_path / "b.onnx")
    assert (answer.code, answer.err) == (0, "")
    made = read_artifact(tmp_path / "b.onnx")
    assert (made.manifest.dtype, made.manifest.got.opset) == ("bfloat16", original.manifest.got.opset)
    found = list(costs(read_signature(original), read_signature(made)))
    assert 6 <= np.median([one.bits for one in found if "logit_std=2" in one.case]) <= 9
    command("convert", original.path, "--to", "bf16", "-o", tmp_path / "c.onnx").assert_refused("--against")
    command(
        "convert", original.path, "--to", "bf16", "--against", "sdpa", "-o", tmp_path / "c.onnx"
    ).assert_refused("other parameters")
    assert not (tmp_path / "c.onnx").exists()


@pytest.mark.slow
def test_a_cost_is_that_of_the_graph_where_the_module_has_a_formula(tmp_path):
    made = [
        next(
            one
            for one in export_entry(resolve("sdpa"), tmp_path / dtype, dtype=dtype)
            if isinstance(one, Artifact)
        )
        for dtype in ("float32", "float16")
    ]
    found = list(costs(*(read_signature(one) for one in made)))
    assert max(one.bits for one in found if one.case.startswith("traced")) < 16


@pytest.mark.slow
def test_a_runtime_is_not_failed_for_what_the_quantised_graph_does_not_keep(tmp_path):
    artifact = next(one for one in export_entry(resolve("sdpa"), tmp_path) if isinstance(one, Artifact))
    signature = read_signature(artifact)
    made = convert(
        artifact,
        "int8-static",
        tmp_path / "codes.onnx",
        calibration_of(signature, 1),
        masked(signature.model),
    )
    report = verify(made, runtimes=("ort-cpu",))
    doubled = next(
        one
        for one in report.records
        if isinstance(one, RelationRecord) and one.relation == "values-doubled" and one.runtime == "ort-cpu"
    )
    assert doubled.verdict == "inconclusive"
    assert "the quantised graph itself does not keep it" in doubled.reason
    assert "OA504" in {item.code for item in report.findings}, "and the file is told"
    assert report.verdict == "passed"


def test_an_infinite_step_is_told():
    text = QUANTISED.replace("BEFORE", MASKED[0]).replace("AFTER", MASKED[1]).replace("WSTEP", "0.0039")
    text = text.replace("STEP", "1").replace("KIND", "uint8").replace("LOW", "-1")
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 21]> {text}')
    for tensor in model.graph.initializer:
        if tensor.name == "step":
            tensor.CopyFrom(onnx.numpy_helper.from_array(np.float32(np.inf), "step"))
    assert [item.code for item in static_findings(model) if item.code == "OA432"] == ["OA432"]


def test_the_cost_of_known_changes():
    exact = np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    same = cost("c", "y", exact, exact)
    assert (same.bits, same.worst_row, same.argmax, same.divergence, same.misplaced) == (math.inf, 0, 1, 0, 0)
    small = cost("c", "y", exact, exact * (1 + 2.0**-10))
    assert small.bits == pytest.approx(10)
    turned = cost("c", "y", exact, np.array([[3.0, 2.0, 1.0], [4.0, 5.0, 6.0]]))
    assert (turned.argmax, turned.worst_index) == (0.5, (0,))
    p = np.exp(exact[0]) / np.exp(exact[0]).sum()
    assert turned.divergence == pytest.approx(float((p * (exact[0] - exact[0][::-1])).sum()))
    assert cost("c", "y", exact, np.array([[np.nan, 2, 3], [4, 5, np.inf]])).misplaced == 2


# What cannot be converted


def test_unknown_kinds_and_files_are_refused_in_one_line(original, command, tmp_path):
    command("convert", original.path, "--to", "int3", "-o", tmp_path / "x.onnx").assert_refused(
        "unknown kind 'int3'"
    )
    command("convert", original.path, "--to", "fp16", "-o", original.path).assert_refused(
        "is the file itself"
    )
    with pytest.raises(UsageError, match="calibrated with inputs"):
        convert(original, "int8-static", tmp_path / "x.onnx")
    assert not (tmp_path / "x.onnx").exists()


@pytest.mark.parametrize("dtype", ["double", "float16"])
def test_half_precision_is_made_from_float32_alone(command, onnx_file, tmp_path, dtype):
    """The converter leaves other dtypes as they are, and the variant was said to be in half precision."""
    path = onnx_file(f"g ({dtype}[n, 4] x) => ({dtype}[n, 4] y) {{ y = Tanh (x) }}")
    command("convert", path, "--to", "fp16", "-o", tmp_path / "x.onnx").assert_refused("made from float32")
    assert not (tmp_path / "x.onnx").exists()


def test_a_file_whose_tensors_are_inputs_too_is_calibrated(tmp_path):
    model = onnx.parser.parse_model(
        '<ir_version: 3, opset_import: ["": 13]> g (float[n, 4] x, float[4, 4] w) => (float[n, 4] y) { y = MatMul (x, w) }'
    )
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.eye(4, dtype=np.float32), "w"))
    onnx.save(model, tmp_path / "m.onnx")
    artifact = read_artifact(tmp_path / "m.onnx")
    for kind, operator in (("int8-static", "QuantizeLinear"), ("int8-dynamic", "MatMulInteger")):
        made = convert(artifact, kind, tmp_path / f"{kind}.onnx", calibration_of(read_signature(artifact), 1))
        assert operator in [node.op_type for node in onnx.load(made.path).graph.node]
        assert len(read_signature(made).contract.inputs) == 1


def test_a_converter_that_fails_is_told_in_its_own_words(tmp_path):
    (tmp_path / "m.onnx").write_bytes(b"\x08\x0a")
    with pytest.raises(UsageError, match="cannot be converted to ort-fused: "):
        convert(Artifact(Path(tmp_path / "m.onnx"), "0"), "ort-fused", tmp_path / "x.onnx")


def test_files_that_are_no_conversion_of_each_other_are_refused(original, tmp_path, onnx_file):
    other = read_signature(
        read_artifact(onnx_file("g (float[n, 4] x) => (float[n, 4] y) { y = Add (x, x) }"))
    )
    with pytest.raises(UsageError, match="other inputs and outputs"):
        list(costs(read_signature(original), other))


def test_the_command_says_what_it_cost(original, command, tmp_path):
    answer = command("convert", original.path, "--to", "fp16", "-o", tmp_path / "half.onnx")
    assert (answer.code, answer.err) == (0, "")
    assert "| same argmax |" in answer.out
    assert (tmp_path / "half.manifest.json").exists()


def test_an_output_that_is_a_circle_of_links_is_replaced(command, onnx_file, tmp_path):
    (tmp_path / "out.onnx").symlink_to("out.onnx")
    path = onnx_file("g (float[n, 4] x) => (float[n, 4] y) { y = Tanh (x) }")
    assert command("convert", path, "--to", "fp16", "-o", tmp_path / "out.onnx").code == 0
    assert not (tmp_path / "out.onnx").is_symlink()


def with_weights_beside(path: Path, place: str) -> Path:
    graph = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 18]> g (float[n, 4] x) => (float[n, 4] y) { y = Mul (x, w) }'
    )
    graph.graph.initializer.append(onnx.numpy_helper.from_array(np.arange(4, dtype=np.float32), "w"))
    (path.parent / place).parent.mkdir(parents=True, exist_ok=True)
    onnx.save(graph, path, save_as_external_data=True, location=place, size_threshold=0)
    return path


@pytest.mark.parametrize("place", ["w.bin", "sub/w.onnx"])
def test_nothing_is_written_over_the_weights_of_the_file(command, tmp_path, place):
    path = with_weights_beside(tmp_path / "m.onnx", place)
    before = (tmp_path / place).read_bytes()
    (tmp_path / "link.onnx").hardlink_to(tmp_path / place)
    command("convert", path, "--to", "fp16", "-o", tmp_path / place).assert_refused(
        "a part of the file itself"
    )
    command("convert", path, "--to", "fp16", "-o", tmp_path / "link.onnx").assert_refused(
        "a part of the file"
    )
    assert (tmp_path / place).read_bytes() == before


def test_no_file_loses_its_manifest_to_a_conversion(original, command, onnx_file, tmp_path):
    """A manifest is named after its file without the ending, and so may be that of two."""
    path, manifest = tmp_path / "m.onnx", tmp_path / "m.manifest.json"
    path.write_bytes(original.path.read_bytes())
    manifest.write_bytes(original.path.with_suffix(".manifest.json").read_bytes())
    for name in ("m.half", "m.manifest.json", "m.ONNX", "m"):
        command("convert", path, "--to", "fp16", "-o", tmp_path / name).assert_refused(
            "a part of the file itself"
        )
    command("convert", path, "--to", "fp16", "-o", tmp_path / "other.half").assert_refused(".onnx")
    bare = onnx_file("g (float[n, 4] x) => (float[n, 4] y) { y = Tanh (x) }", "bare.onnx")
    command("convert", bare, "--to", "fp16", "-o", tmp_path / "m.half").assert_refused(
        "does not end in .onnx"
    )
    command("convert", bare, "--to", "fp16", "-o", path).assert_refused("m.manifest.json is of another file")
    assert read_artifact(path).manifest == original.manifest
    assert path.read_bytes() == original.path.read_bytes()
