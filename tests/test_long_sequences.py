"""A long attention, verified by blocks of its query rows or by some of them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np
import onnx
import pytest

from onnx_attest.errors import UsageError
from onnx_attest.verify import verify
from onnx_attest.verify.arithmetic import PROFILES
from onnx_attest.verify.engine import Plan
from onnx_attest.verify.footprint import refuse_beyond_memory, scores_held
from onnx_attest.verify.oracle.by_rows import ByRows
from onnx_attest.verify.oracle.graph import GraphOracle
from onnx_attest.verify.oracle.ops.operator import UnsupportedOperatorError
from onnx_attest.verify.runtimes.base import Availability, Placement
from onnx_attest.verify.runtimes.onnxruntime import OrtRuntime
from onnx_attest.verify.runtimes.reference import ReferenceRuntime
from onnx_attest.verify.sampling.held import odd_rows
from onnx_attest.verify.sampling.sample import CONFIDENCE, Sample, edges, least_seen, missed

FP32 = replace(PROFILES["fp32"], deviations=True)
BATCH, LENGTH, SIZE = 2, 150, 12
ROWS = np.array([0, 1, 2, 3, 63, 64, 77, 140, 149])
FLOAT64_ROUNDING = 1e3 * 2.0**-53
SHORT = 1e-3  # what float32 magnitudes, summed in other panels, may make of a bound
CONTRIB = 'opset_import: ["": 21, "com.microsoft": 1]'
STANDARD = 'opset_import: ["": 24]'
THREE = "float[batch, length, 12] q, float[batch, length, 12] k, float[batch, length, 12] v"
FOUR = "float[batch, 1, length, 12] q, float[batch, 1, length, 12] k, float[batch, 1, length, 12] v"


def graph(
    opsets: str, inputs: str, body: str, outputs: str = "float[batch, length, width] y"
) -> onnx.ModelProto:
    return onnx.parser.parse_model(f"<ir_version: 10, {opsets}> g ({inputs}) => ({outputs}) {{ {body} }}")


def multi_head(attributes: str = "", more: str = "") -> str:
    return f"y = com.microsoft.MultiHeadAttention <num_heads = 3 {attributes}> (q, k, v {more})"


def joined(attributes: str = "", more: str = "") -> str:
    return f"y = Attention <q_num_heads = 3, kv_num_heads = 3 {attributes}> (q, k, v {more})"


GROUPED = "com.microsoft.GroupQueryAttention <num_heads = 3, kv_num_heads = 3 {}> (q, k, v, , , last, total)"
GROUPED_INPUTS = f"{THREE}, int32[batch] last, int32 total"
CACHE = ", ".join(f"float[batch, 3, all, 4] {name}" for name in ("pk", "pv"))
BLOCK = """
  qkv = MatMul (x, w)
  cuts = Constant <value_ints = [12, 12, 12]> ()
  a, b, c = Split <axis = -1> (qkv, cuts)
  shape = Constant <value_ints = [0, 0, 3, 4]> ()
  a4 = Reshape (a, shape)
  b4 = Reshape (b, shape)
  c4 = Reshape (c, shape)
  at = Transpose <perm = [0, 2, 1, 3]> (a4)
  bt = Transpose <perm = [0, 2, 1, 3]> (b4)
  ct = Transpose <perm = [0, 2, 1, 3]> (c4)
  o = Attention <is_causal = 1> (at, bt, ct)
  ot = Transpose <perm = [0, 2, 1, 3]> (o)
  sizes = Shape <start = 0, end = 2> (ot)
  last = Constant <value_ints = [-1]> ()
  wanted = Concat <axis = 0> (sizes, last)
  flat = Reshape (ot, wanted)
  out = MatMul (flat, u)
  residual = Add (x, out)
  normal = LayerNormalization <axis = -1> (residual, g)
  y = Relu (normal)
"""
WEIGHTS = "float[12, 36] w, float[12, 12] u, float[12] g"
GRAPHS = {
    "Attention": graph(STANDARD, FOUR, "y = Attention (q, k, v)", "float[batch, 1, length, 12] y"),
    "Attention, joined heads": graph(STANDARD, THREE, joined()),
    "Attention, causal": graph(STANDARD, THREE, joined(", is_causal = 1")),
    "Attention, windows": graph('opset_import: ["": 25]', THREE, joined(", left_window_size = 9, right_window_size = 4")),
    "Attention, window to the left": graph('opset_import: ["": 25]', THREE, joined(", left_window_size = 9")),
    "Attention, softcap": graph(STANDARD, THREE, joined(", softcap = 2.0")),
    "Attention, mask": graph(STANDARD, f"{THREE}, bool[length, length] mask", joined("", ", mask")),
    "Attention, bias and causal": graph(
        STANDARD, f"{THREE}, float[1, 3, length, length] bias", joined(", is_causal = 1", ", bias")
    ),
    "MultiHeadAttention": graph(CONTRIB, THREE, multi_head()),
    "MultiHeadAttention, causal": graph(CONTRIB, THREE, multi_head(", unidirectional = 1")),
    "MultiHeadAttention, padding": graph(CONTRIB, f"{THREE}, int32[batch, length] real", multi_head("", ", , real")),
    "MultiHeadAttention, padding of each query": graph(
        CONTRIB, f"{THREE}, int32[batch, length, length] real", multi_head("", ", , real")
    ),
    "MultiHeadAttention, bias": graph(
        CONTRIB, f"{THREE}, float[1, 3, length, length] bias", multi_head("", ", , , bias")
    ),
    "GroupQueryAttention": graph(
        CONTRIB, GROUPED_INPUTS, f"y, pk, pv = {GROUPED.format('')}", f"float[batch, length, 12] y, {CACHE}"
    ),
    "GroupQueryAttention, window": graph(
        CONTRIB, GROUPED_INPUTS, f"y, pk, pv = {GROUPED.format(', local_window_size = 7')}",
        f"float[batch, length, 12] y, {CACHE}",
    ),
    "GroupQueryAttention, other lengths": graph(
        CONTRIB, GROUPED_INPUTS.replace("last", "others"), f"y, pk, pv = {GROUPED.format('')}".replace("last", "others"),
        f"float[batch, length, 12] y, {CACHE}",
    ),
    "GroupQueryAttention, sink": graph(
        CONTRIB, GROUPED_INPUTS, f"y, pk, pv = {GROUPED.format(', smooth_softmax = 1')}",
        f"float[batch, length, 12] y, {CACHE}",
    ),
    "projections, residual and normalisation": graph(STANDARD, f"float[batch, length, 12] x, {WEIGHTS}", BLOCK),
}  # fmt: skip


def fed(model: onnx.ModelProto, length: int = LENGTH) -> dict[str, np.ndarray]:
    """Inputs of these sizes by what their names say."""
    rng = np.random.default_rng(0)
    sizes = {"batch": BATCH, "length": length}
    given: dict[str, np.ndarray] = {
        "last": np.full(BATCH, length - 1, np.int32),
        "others": np.array([length - 1, length - 60], np.int32),
        "total": np.array(length, np.int32),
    }
    for value in model.graph.input:
        shape = [sizes.get(axis.dim_param, axis.dim_value) for axis in value.type.tensor_type.shape.dim]
        if value.name not in given:
            given[value.name] = rng.standard_normal(shape).astype(np.float32)
        if value.name == "mask":
            given[value.name] = rng.random(shape) < 0.5
        if value.name == "real":
            given[value.name] = (rng.random(shape) < 0.8).astype(np.int32)
    return {value.name: given[value.name] for value in model.graph.input}


# --- the oracle -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", GRAPHS)
def test_rows_are_those_of_the_whole_graph(name):
    oracle, inputs = GraphOracle(GRAPHS[name]), fed(GRAPHS[name])
    whole = oracle.evaluate(inputs, FP32).outputs
    by_rows = oracle.by_rows(inputs, FP32)
    assert (by_rows.count, by_rows.keys) == (LENGTH, LENGTH)
    for output, some in by_rows.at(ROWS).items():
        axis = by_rows.layout[output].axis
        assert by_rows.layout[output].shape == whole[output].value.shape
        value, error = (
            np.take(np.broadcast_to(part, whole[output].value.shape), ROWS, axis)
            for part in (whole[output].value, whole[output].errors())
        )
        np.testing.assert_allclose(some.value, value, rtol=0, atol=FLOAT64_ROUNDING)
        np.testing.assert_allclose(some.errors(), error, rtol=SHORT)
    for output, other in by_rows.others().items():
        np.testing.assert_array_equal(other.value, whole[output].value)


def test_projections_by_rows_have_the_bound_of_the_whole():
    """Residual, projection and normalisation behind the attention are evaluated for the rows that are asked for."""
    model = GRAPHS["projections, residual and normalisation"]
    by_rows = GraphOracle(model).by_rows(fed(model), FP32)
    assert by_rows.at(ROWS)["y"].value.shape == (BATCH, len(ROWS), 12)
    assert not by_rows.has_deviations  # the projections' own are not carried through an attention


REFUSED = {
    "no attention that is one operator": graph(STANDARD, THREE, "y = Add (q, k)"),
    "meets what another attention gives": graph(
        STANDARD, THREE,
        "o = Attention <q_num_heads = 3, kv_num_heads = 3> (q, k, v)"
        " y = Attention <q_num_heads = 3, kv_num_heads = 3> (o, o, o)",
    ),
    "its axis along the rows": graph(STANDARD, THREE, joined().replace("y =", "o =") + " y = LayerNormalization <axis = 1> (o, o)"),
    "is not followed row by row": graph(STANDARD, THREE, joined().replace("y =", "o =") + " y = CumSum (o, o)"),
    "gives its weights": graph(
        STANDARD, THREE, "y, pk, pv, weights = Attention <q_num_heads = 3, kv_num_heads = 3> (q, k, v)",
        "float[batch, length, 12] y, float[batch, 3, length, length] weights",
    ),
}  # fmt: skip


@pytest.mark.parametrize("why", REFUSED)
def test_graph_whose_rows_cannot_be_told_apart_says_why(why):
    with pytest.raises(UnsupportedOperatorError, match=why):
        GraphOracle(REFUSED[why]).by_rows(fed(REFUSED[why]), FP32)


# --- which rows -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rows", "drawn"), [(20, 3), (50, 30), (1000, 100), (1000, 999), (7, 7)])
def test_least_seen_is_that_of_the_hypergeometric_distribution(rows, drawn):
    at_fault = least_seen(rows, drawn)

    def exact(count):
        return math.comb(rows - count, drawn) / math.comb(rows, drawn)

    assert exact(at_fault) <= 1 - CONFIDENCE < exact(at_fault - 1)
    assert missed(rows, at_fault, drawn) == pytest.approx(exact(at_fault), rel=1e-9, abs=1e-12)


def test_share_of_few_rows_of_many_is_that_of_independent_draws():
    sample = Sample.of(131_072, 4096, seed=0)
    assert sample.share == pytest.approx(1 - (1 - CONFIDENCE) ** (1 / sample.drawn), rel=0.02)
    assert sample.share < 1 - (1 - CONFIDENCE) ** (1 / sample.drawn)  # drawn rows are not drawn twice


def test_faults_are_missed_as_often_as_the_sample_says():
    """The faults are where nobody looks always: otherwise they would be missed less often."""
    count, wanted, trials = 400, 60, 2000
    fixed = edges(count)
    faulty = np.setdiff1d(np.arange(count), fixed)[:: 400 // Sample.of(count, wanted, 0).least_seen]
    missing = sum(not np.isin(faulty, Sample.of(count, wanted, seed).rows).any() for seed in range(trials))
    sample = Sample.of(count, wanted, 0)
    expected = trials * missed(count - len(fixed), len(faulty), sample.drawn)
    assert abs(missing - expected) < 4 * math.sqrt(expected)


def test_edges_of_blocks_are_always_among_the_rows():
    sample = Sample.of(1000, 100, seed=3)
    assert {0, 1, 63, 64, 127, 128, 511, 512, 999} <= set(sample.rows.tolist())
    assert len(sample.rows) == 100 == sample.fixed + sample.drawn
    assert (np.diff(sample.rows) > 0).all()


def test_sample_says_what_it_means():
    text = str(Sample.of(131_072, 4096, seed=7))
    assert text.startswith(
        "4,096 of 131,072 rows, seed 7: a fault in more than 0.074 % of the rows would have been seen with 95 % confidence; "
        "the rest is untested"
    )


def test_rows_that_look_odd_are_found():
    array = np.random.default_rng(0).standard_normal((2, 9000, 3)).astype(np.float32)
    array[1, 5000, 2], array[:, 8000], array[0, 4100, 0] = np.nan, 0.0, -90.0
    assert odd_rows(array, 1).tolist() == [4100, 5000, 8000]


# --- verification -----------------------------------------------------------------------------------------------

LONG = 3000
"""Above the size from which rows are looked at: 3000 x 3000 scores are more than 2^23."""


@dataclass(frozen=True)
class Wrong:
    """ONNX Runtime, whose outputs are then changed along the rows."""

    name: str = "wrong"
    rows: slice = field(default_factory=lambda: slice(0, 0))
    factor: float = 1.0
    fill: float | None = None

    def arithmetic(self, dtype):
        return "fp32"

    def availability(self):
        return Availability(True, "1")

    def open(self, artifact, *, model=None, threads=None):
        return Changed(OrtRuntime().open(artifact, model=model, threads=threads), self)


class Changed:
    placement = Placement()

    def __init__(self, session, how):
        self._session, self._how = session, how

    def run(self, inputs):
        (name, y), *_ = self._session.run(inputs).items()
        y = y.copy()
        if y.shape[1] == LONG:
            y[:, self._how.rows] *= self._how.factor
            if self._how.fill is not None:
                y[:, self._how.rows] = self._how.fill
        return {name: y}


@pytest.fixture(scope="module")
def long_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("long") / "mha.onnx"
    inputs = ", ".join(f"float[1, length, 8] {name}" for name in "qkv")
    body = "y = com.microsoft.MultiHeadAttention <num_heads = 1> (q, k, v)"
    onnx.save(graph(CONTRIB, inputs, body, "float[1, length, 8] y"), path)
    return path


def verified(path, *runtimes, rows=None, **options):
    plan = Plan(runtimes=runtimes, rows=rows, **options)
    return verify(path, plan=plan, input_shapes={"q": (1, LONG, 8)})


def codes(report):
    return {item.code for item in report.findings}


@pytest.mark.parametrize("rows", [None, 200])
def test_right_runtime_passes_by_its_rows(long_file, rows):
    report = verified(long_file, OrtRuntime(), rows=rows)
    (cell,) = report.cells
    assert cell.verdict == "passed", cell.reason
    assert cell.gates["rows"]["verified"] >= (rows or LONG)
    assert ("OA809" in codes(report)) == (rows is not None)
    assert cell.effective_bits is not None


def test_some_rows_have_the_errors_of_all(long_file):
    whole, some = (verified(long_file, OrtRuntime(), rows=rows).cells[0] for rows in (None, 500))
    assert some.gates["proof"]["max_err_over_tau"] <= whole.gates["proof"]["max_err_over_tau"] * (1 + SHORT)
    assert some.effective_bits == pytest.approx(whole.effective_bits, abs=0.3)


@pytest.mark.parametrize("rows", [None, 100])
def test_fault_from_a_block_on_is_caught(long_file, rows):
    """Wrong by 1e-3 from 3/4 of the rows on: of 100 rows, one is missed once in 10^13 times."""
    wrong = Wrong(rows=slice(3 * LONG // 4, None), factor=1 + 1e-3)
    report = verified(long_file, wrong, rows=rows)
    (cell,) = report.cells
    assert cell.verdict == "failed"
    assert "OA301" in cell.findings
    assert cell.worst_index[1] >= 3 * LONG // 4


def test_fault_in_few_rows_is_not_said_to_be_excluded(long_file):
    report = verified(long_file, Wrong(rows=slice(2500, 2503), factor=1 + 1e-3), rows=100)
    (cell,) = report.cells
    assert cell.verdict == "passed"
    (said,) = (item for item in report.findings if item.code == "OA809")
    assert "the rest is untested" in said.message
    assert cell.gates["rows"]["share"] > 3 / LONG


@pytest.mark.parametrize(("fill", "code"), [(np.nan, "OA303"), (0.0, "OA301")])
def test_rows_that_were_never_written_are_seen_wherever_they_are(long_file, fill, code):
    report = verified(long_file, Wrong(rows=slice(2500, 2501), fill=fill), rows=100)
    assert report.cells[0].verdict == "failed"
    assert code in report.cells[0].findings
    assert "2500" in report.cells[0].reason


def test_tolerance_that_was_asked_for_is_held_by_rows_too(long_file):
    report = verified(long_file, OrtRuntime(), rows=100, atol=0.0, rtol=0.0)
    assert "OA306" in report.cells[0].findings


def test_output_of_another_shape_is_said(long_file):
    class Shorter(Changed):
        def run(self, inputs):
            return {name: y[:, :-1] for name, y in self._session.run(inputs).items()}

    class Short(Wrong):
        def open(self, artifact, *, model=None, threads=None):
            return Shorter(OrtRuntime().open(artifact, model=model, threads=threads), self)

    (cell,) = verified(long_file, Short()).cells
    assert cell.verdict == "failed"
    assert "(1, 2999, 8), it should be (1, 3000, 8)" in cell.reason


def test_command_takes_the_number_of_rows(long_file, command):
    shape = f"q:[1,{LONG},8]"
    answer = command(
        "verify", long_file, "--runtime", "ort-cpu", "--in-process", "--input-shapes", shape, "--rows", "100"
    )
    assert answer.code == 0
    assert "100 of 3,000 rows" in answer.out


def test_runtimes_share_what_the_oracle_gives(long_file, monkeypatch):
    blocks, at = [], ByRows.at

    def counted(self, rows):
        blocks.append(len(rows))
        return at(self, rows)

    monkeypatch.setattr(ByRows, "at", counted)
    report = verified(long_file, OrtRuntime(), Wrong(rows=slice(0, 9), factor=2.0))
    assert [cell.verdict for cell in report.cells] == ["passed", "failed"]
    assert sum(blocks) == LONG


def test_fused_operator_without_weights_is_verified_at_any_size(long_file):
    """Its softmax cannot be looked at, which is said, and no reason to end."""
    report = verify(long_file, plan=Plan(runtimes=(OrtRuntime(),)), input_shapes={"q": (1, 20, 8)})
    assert [cell.verdict for cell in report.cells] == ["passed"]
    assert any(
        "cannot be asked for its weights" in getattr(record, "reason", "") for record in report.records
    )


# --- memory -----------------------------------------------------------------------------------------------------

GIANT = 131_072
WRITTEN_OUT = graph(
    STANDARD, "float[1, n, 8] q, float[1, n, 8] k, float[1, n, 8] v",
    "t = Transpose <perm = [0, 2, 1]> (k) s = MatMul (q, t) w = Softmax <axis = -1> (s) y = MatMul (w, v)",
    "float[1, n, 8] y",
)  # fmt: skip


def test_giant_that_is_written_out_is_refused_before_anything_is_made(monkeypatch):
    monkeypatch.setattr("onnx_attest.verify.footprint.free_bytes", lambda: 16 * 10**9)
    shapes = dict.fromkeys("qkv", (1, GIANT, 8))
    with pytest.raises(UsageError, match=r"s alone has 17,179,869,184 elements.*16 GB are free"):
        refuse_beyond_memory(WRITTEN_OUT, shapes)


@pytest.mark.parametrize("given", [False, True])
def test_original_that_is_written_out_is_refused_too(tmp_path, monkeypatch, given):
    path, size = tmp_path / "fused.onnx", LONG
    inputs = ", ".join(f"float[1, n, 8] {name}" for name in "qkv")
    body = "y = com.microsoft.MultiHeadAttention <num_heads = 1, scale = 1.0> (q, k, v)"
    onnx.save(graph(CONTRIB, inputs, body, "float[1, n, 8] y"), path)
    monkeypatch.setattr("onnx_attest.verify.footprint.free_bytes", lambda: 200 * size**2 - 1)
    sizes = {"inputs": {name: np.zeros((1, size, 8), np.float32) for name in "qkv"}}
    if not given:
        sizes = {"input_shapes": {"q": (1, size, 8)}}
    plan = Plan(runtimes=(OrtRuntime(),))
    assert verify(path, plan=plan, **sizes).verdict == "passed"
    with pytest.raises(UsageError, match=r"s alone has 9,000,000 elements"):
        verify(path, plan=replace(plan, original=WRITTEN_OUT), **sizes)


@pytest.mark.parametrize("name", ["Attention, joined heads", "MultiHeadAttention", "GroupQueryAttention"])
def test_giant_that_is_one_operator_is_not_refused(name, monkeypatch):
    monkeypatch.setattr("onnx_attest.verify.footprint.free_bytes", lambda: 16 * 10**9)
    refuse_beyond_memory(GRAPHS[name], dict.fromkeys("qkv", (1, GIANT, 12)))


@pytest.mark.parametrize(
    ("runtime", "name", "held"),
    [
        (OrtRuntime(), "Attention, joined heads", True),
        (OrtRuntime(), "MultiHeadAttention", False),
        (OrtRuntime(), "MultiHeadAttention, causal", True),
        (OrtRuntime(), "GroupQueryAttention", False),
        (ReferenceRuntime(), "Attention, joined heads", True),
        (Wrong(), "Attention, joined heads", False),
    ],
)
def test_scores_that_a_runtime_holds_are_counted(runtime, name, held):
    _, size = scores_held(runtime, GRAPHS[name], dict.fromkeys("qkv", (1, GIANT, 12)), 4)
    assert size == (4 * 3 * GIANT**2 if held else 0)


def test_runtime_without_room_is_left_out_and_it_is_said(tmp_path, monkeypatch):
    path = tmp_path / "attention.onnx"
    onnx.save(graph(STANDARD, THREE.replace("batch", "1"), joined(), "float[1, length, 12] y"), path)
    monkeypatch.setattr("onnx_attest.verify.engine.free_bytes", lambda: 10**6)
    plan = Plan(runtimes=(OrtRuntime(), Wrong()))
    report = verify(path, plan=plan, input_shapes={"q": (1, 400, 12)})
    assert [cell.verdict for cell in report.cells] == ["skipped", "passed"]
    assert "it holds all scores of Attention at once" in report.cells[0].reason
    alone = verify(path, plan=replace(plan, runtimes=(OrtRuntime(),)), input_shapes={"q": (1, 400, 12)})
    assert (alone.verdict, alone.run.exit_code) == ("inconclusive", 3)
