"""Where a softmax breaks: by formula, by running it alone, and what is said when the two differ."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import pytest
from onnx import TensorProto

from onnx_attest.export.artifact import read_artifact
from onnx_attest.verify.arithmetic import profile
from onnx_attest.verify.cell import Identity, Stage, Subject
from onnx_attest.verify.engine import Plan, verify_artifact
from onnx_attest.verify.expected import Expected
from onnx_attest.verify.finder.find import find
from onnx_attest.verify.headroom.audit import CutSession, Headroom, worth_telling
from onnx_attest.verify.headroom.cut import UncutError, cut_out
from onnx_attest.verify.headroom.predicted import unshifted_break
from onnx_attest.verify.headroom.search import RESOLUTION, first_break
from onnx_attest.verify.outcome import conclude
from onnx_attest.verify.records import CaseRecord, FindingRecord, HeadroomRecord, RunRecord
from onnx_attest.verify.report.by_kind import csv_of
from onnx_attest.verify.report.headroom import headroom_table
from onnx_attest.verify.runtimes.base import Availability, Placement, ProcessDiedError
from onnx_attest.verify.runtimes.registry import select
from onnx_attest.verify.signature import read_signature

RUNTIMES = ("ort-cpu", "ort-cpu-noopt", "onnx-reference")
CASE = CaseRecord(name="traced", axes={"n": 8})
KEYS = 1024
OVERFLOW = {"float32": math.log(float(np.finfo(np.float32).max)), "float16": math.log(65504.0)}
NAIVE = """
naive (float[rows, n] x) => (float[rows, n] p) <int64[1] axes = {-1}>
{
  e = Exp (x)
  t = ReduceSum (e, axes)
  p = Div (e, t)
}
"""
SHIFTED = """
shifted (float[rows, n] x) => (float[rows, n] p) <int64[1] axes = {-1}>
{
  m = ReduceMax (x, axes)
  d = Sub (x, m)
  e = Exp (d)
  t = ReduceSum (e, axes)
  p = Div (e, t)
}
"""
SOFTMAX = "softmax (float[rows, n] x) => (float[rows, n] p) { p = Softmax <axis = -1> (x) }"
LOGARITHM = "logs (float[rows, n] x) => (float[rows, n] p) { p = LogSoftmax <axis = -1> (x) }"
COLUMNS = "columns (float[rows, n] x) => (float[rows, n] p) { p = Softmax <axis = 0> (x) }"
BLOCK = "block (float[rows, n, 4] x) => (float[rows, n, 4] p) { p = Softmax <axis = 1> (x) }"
ATTENTION = """
attention (float[b, 2, n, 4] q, float[b, 2, n, 4] k, float[b, 2, n, 4] v) => (float[b, 2, n, 4] y)
{
  y = Attention <is_causal = 1> (q, k, v)
}
"""
THREE = """
three (float[rows, n] x) => (float[rows, n] c)
{
  a = Softmax <axis = -1> (x)
  b = Softmax <axis = -1> (a)
  c = Softmax <axis = -1> (b)
}
"""
INSIDE = """
inside (float[rows, n] x, bool c) => (float[rows, n] y)
{
  y = If (c) <
    then_branch = yes () => (float[rows, n] p) { p = Softmax <axis = -1> (x) },
    else_branch = no () => (float[rows, n] q) { q = Identity (x) }
  >
}
"""
FED = """
fed (float[rows, n] x, float[1] epsilon) => (float[rows, n] p) <int64[1] axes = {-1}>
{
  e = Exp (x)
  s = ReduceSum (e, axes)
  t = Max (s, epsilon)
  p = Div (e, t)
}
"""


def half(graph: str) -> str:
    return graph.replace("float[", "float16[")


def stage(runtime: Any, dtype: str = "float32") -> Stage:
    return Stage(runtime, "1", profile(runtime.arithmetic(dtype)))


def headroom_of(path: Path, largest: float = 2.0) -> Headroom:
    """Return the audit of a file whose inputs are fed with logits up to `largest`."""
    artifact = read_artifact(path)
    signature = read_signature(artifact)
    subject = Subject(Identity.of(artifact, signature), signature, Expected(signature))
    inputs = {}
    for spec in signature.contract.inputs:
        shape = [size if isinstance(size, int) else 8 for size in spec.axes]
        whole = np.linspace(-largest, largest, math.prod(shape)).reshape(shape)
        inputs[spec.name] = whole.astype(signature.dtypes[spec.name])
    return Headroom(artifact, subject, find(signature.model), CASE, inputs)


def on(runtime: Any, path: Path, largest: float = 2.0, dtype: str = "float32") -> list[HeadroomRecord]:
    return [record for record, _ in headroom_of(path, largest).on(stage(runtime, dtype), None)]


@dataclass(frozen=True)
class Kernel:
    """A runtime that computes weights from logits (rows, keys) by a function of its own."""

    weights: Callable[[np.ndarray], np.ndarray]
    opened: list[bytes] = field(default_factory=list)
    name: str = "kernel"
    placement: Placement = field(default_factory=Placement)

    def arithmetic(self, dtype: str) -> str:
        return "fp32"

    def availability(self) -> Availability:
        return Availability(True, "1")

    def open(self, artifact: Any, *, model: bytes | None = None, threads: int | None = None) -> Kernel:
        self.opened.append(model or b"")
        return self

    def run(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        with np.errstate(all="ignore"):
            return {"weights": self.weights(inputs["logits"])}


def naive(logits):
    exponentials = np.exp(logits)
    return exponentials / exponentials.sum(-1, keepdims=True)


def stable(logits):
    return naive(logits - logits.max(-1, keepdims=True))


def early(logits):
    """Lose the row above 50, as exponentials in a format with a smaller exponent would."""
    return np.where(logits.max(-1, keepdims=True) > 50, np.float32(np.nan), naive(logits))


def never_one(logits):
    """Not divide: rows that sum to anything."""
    return np.exp(logits - logits.max(-1, keepdims=True))


# By formula


def test_one_large_logit_breaks_at_the_logarithm_of_the_largest_number():
    logits = np.eye(1, 6)
    assert unshifted_break(logits, "float32").logit == pytest.approx(88.72284, abs=1e-4)
    assert unshifted_break(logits, "float16").logit == pytest.approx(11.08979, abs=1e-4)


def test_equal_logits_break_earlier_by_the_logarithm_of_their_number():
    assert unshifted_break(np.ones((1, KEYS)), "float32").logit == pytest.approx(81.79137, abs=1e-4)


def test_a_row_of_negative_logits_breaks_where_its_last_exponential_is_lost():
    found = unshifted_break(-np.ones((1, 4)), "float32")
    assert (found.cause, found.logit) == ("underflow", pytest.approx(-150 * math.log(2)))


def test_masked_keys_take_no_part():
    logits = np.array([[1.0, 1.0, -np.inf, -np.inf]])
    assert unshifted_break(logits, "float32").logit == pytest.approx(OVERFLOW["float32"] - math.log(2))


@pytest.mark.parametrize("limit", [88.7, 1.5, 3e30, 0.01])
def test_the_search_finds_where_something_stops_to_work(limit):
    found = first_break(lambda factor: factor < limit, 3e38)
    assert limit <= found.factor <= limit * (1 + RESOLUTION)


def test_the_search_says_up_to_where_it_looked():
    assert first_break(lambda factor: True, 65504.0) == (None, 65504.0)


def test_the_search_ends_where_nothing_works():
    assert first_break(lambda factor: False, 65504.0).factor == 0.0


# On runtimes


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_the_formula_and_the_runtime_agree(onnx_file, runtime, dtype):
    """ONNX Runtime computes float16 on a CPU in float32, with casts: it breaks at 88.72 there too."""
    kept = "float16" if (runtime, dtype) == ("onnx-reference", "float16") else "float32"
    path = onnx_file(half(NAIVE) if dtype == "float16" else NAIVE)
    artifact = read_artifact(path)
    model = read_signature(artifact).model
    (softmax,) = find(model).softmaxes
    (party,) = select([runtime])
    cut = cut_out(model, softmax, 2)
    alone = CutSession(
        cut, party.open(artifact, model=cut.model), profile(party.arithmetic(dtype)), shifted=False
    )
    for logits, less in ((np.eye(1, KEYS), 0.0), (np.ones((1, KEYS)), math.log(KEYS))):
        seen = alone.measure(logits)
        assert (seen.kept, seen.agrees) == (kept, True)
        assert seen.logit == pytest.approx(OVERFLOW[kept] - less, rel=0.01)


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize(
    ("graph", "opset"),
    [
        (SOFTMAX, 18),
        (SHIFTED, 18),
        (LOGARITHM, 18),
        (COLUMNS, 18),
        (BLOCK, 11),
        (ATTENTION, 23),
        (half(SOFTMAX), 18),
    ],
)
def test_a_softmax_that_subtracts_its_maximum_never_breaks(onnx_file, runtime, graph, opset):
    (party,) = select([runtime])
    dtype = "float16" if "float16" in graph else "float32"
    (record,) = on(party, onnx_file(graph, opset=opset), dtype=dtype)
    assert (record.verdict, record.reason, record.broke_at_logit, record.agrees) == ("passed", "", None, True)
    assert record.tried_to_logit > (1e4 if dtype == "float16" else 1e37)
    assert record.keys == (32 if graph == BLOCK else 8)


def one_operator(
    operator: str, widths: Mapping[str, tuple[str | int, ...]], **attributes: Any
) -> onnx.ModelProto:
    """Return an operator of com.microsoft on inputs of these axes; an integer one is named in capitals."""
    kinds = {name: TensorProto.INT32 if name.isupper() else TensorProto.FLOAT for name in widths}
    infos = [onnx.helper.make_tensor_value_info(name, kinds[name], axes) for name, axes in widths.items()]
    names = list(widths)
    if operator == "GroupQueryAttention":
        names[3:3] = ["", ""]
    outputs = ["y", "a", "b"] if operator == "GroupQueryAttention" else ["y"]
    node = onnx.helper.make_node(operator, names, outputs, domain="com.microsoft", **attributes)
    y = onnx.helper.make_tensor_value_info("y", TensorProto.FLOAT, ("b", "n", "w"))
    opsets = [onnx.helper.make_opsetid("", 20), onnx.helper.make_opsetid("com.microsoft", 1)]
    return onnx.helper.make_model(
        onnx.helper.make_graph([node], "g", infos, [y]), opset_imports=opsets, ir_version=10
    )


CONTRIBUTED = {
    "MultiHeadAttention": one_operator(
        "MultiHeadAttention", dict.fromkeys("qkv", ("b", "n", 16)), num_heads=4, scale=0.3
    ),
    "Attention": one_operator(
        "Attention", {"x": ("b", "n", 16), "w": (16, 48), "c": (48,)}, num_heads=4, unidirectional=1
    ),
    "GroupQueryAttention": one_operator(
        "GroupQueryAttention",
        {"q": ("b", "n", 32), "k": ("b", "n", 16), "v": ("b", "n", 16), "LAST": ("b",), "TOTAL": ()},
        num_heads=4,
        kv_num_heads=2,
        local_window_size=3,
    ),
}


@pytest.mark.parametrize("operator", CONTRIBUTED)
def test_attention_inside_an_operator_of_onnx_runtime_is_asked_alone(tmp_path, operator):
    model = CONTRIBUTED[operator]
    onnx.save(model, tmp_path / "whole.onnx")
    (softmax,) = find(model).softmaxes
    cut = cut_out(model, softmax, 4)
    (party,) = select(["ort-cpu"])
    session = party.open(read_artifact(tmp_path / "whole.onnx"), model=cut.model)
    for top in (1.0, 100.0, 1e30):
        logits = np.array([[top, 0.0, -top, top / 2, 0.0], [0.0, 0.0, 0.0, top, top]])
        assert cut.sums(session.run(cut.feed(logits))) == pytest.approx([1, 1], abs=1e-6)
    seen = CutSession(cut, session, profile(party.arithmetic("float32")), shifted=True).measure(
        np.eye(1, KEYS)
    )
    assert (seen.factor, seen.agrees) == (None, True)


@pytest.mark.parametrize("more", [{"smooth_softmax": 1}, {"sink": 1}])
def test_attention_with_a_sink_is_not_taken_apart(more):
    model = onnx.ModelProto()
    model.CopyFrom(CONTRIBUTED["GroupQueryAttention"])
    if "sink" in more:
        model.graph.node[0].input.extend(["", "", "", "", "sink"])
        model.graph.input.append(onnx.helper.make_tensor_value_info("sink", TensorProto.FLOAT, (4,)))
    else:
        model.graph.node[0].attribute.append(onnx.helper.make_attribute("smooth_softmax", 1))
    (softmax,) = find(model).softmaxes
    with pytest.raises(UncutError, match="not cut out"):
        cut_out(model, softmax, 4)


# Caught when wrong


def codes(runtime: Kernel, path: Path, largest: float = 2.0) -> set[str]:
    return {code for record in on(runtime, path, largest) for code in record.findings}


def test_a_kernel_as_written_is_warned_of(onnx_file):
    assert codes(Kernel(naive), onnx_file(NAIVE)) == {"OA409"}


def test_one_that_breaks_before_its_arithmetic_explains_it_is_an_error(onnx_file):
    records = on(Kernel(early), onnx_file(NAIVE))
    assert {record.verdict for record in records} == {"failed"}
    assert {record.findings for record in records} == {("OA408",)}
    assert records[0].broke_at_logit == pytest.approx(50, rel=0.01)


@pytest.mark.parametrize("kernel", [early, never_one])
def test_one_that_subtracts_the_maximum_and_breaks_is_an_error(onnx_file, kernel):
    assert codes(Kernel(kernel), onnx_file(SOFTMAX)) == {"OA408"}


def test_one_that_breaks_on_the_given_data_is_an_error(onnx_file):
    records = on(Kernel(naive), onnx_file(NAIVE), largest=100.0)
    given = next(record for record in records if record.profile == "given")
    assert (given.findings, given.verdict, given.agrees) == (("OA408",), "failed", True)
    assert given.headroom_log2 == pytest.approx(math.log2(OVERFLOW["float32"] / 100.0), abs=0.02)


def test_one_that_was_rewritten_is_noted(onnx_file):
    assert codes(Kernel(stable), onnx_file(NAIVE)) == {"OA410"}


def test_headroom_is_the_powers_of_two_from_the_data_to_the_break(onnx_file):
    far = {
        record.profile: record.headroom_log2 for record in on(Kernel(naive), onnx_file(NAIVE), largest=11.0)
    }
    assert far["one large"] == pytest.approx(math.log2(OVERFLOW["float32"] / 11.0), abs=0.01)


def test_one_finding_a_softmax_and_code_names_the_least_headroom(onnx_file):
    seen = list(headroom_of(onnx_file(NAIVE)).on(stage(Kernel(naive)), None))
    ((record, item),) = worth_telling(seen)
    assert item.code == "OA409"
    assert record.headroom_log2 == min(one.headroom_log2 for one, _ in seen)


# What is not tried is said


def test_equal_softmaxes_are_opened_once(onnx_file):
    kernel = Kernel(stable)
    assert len(on(kernel, onnx_file(THREE))) == 3
    assert len(kernel.opened) == 1


@pytest.mark.parametrize(
    ("graph", "reason"),
    [(INSIDE, "in the body of another node"), (FED, "epsilon, which is computed elsewhere")],
)
def test_what_cannot_stand_alone_is_skipped_and_says_why(onnx_file, graph, reason):
    (record,) = on(Kernel(stable), onnx_file(graph))
    assert record.verdict == "skipped"
    assert reason in record.reason


def test_a_runtime_that_refuses_the_softmax_alone_is_skipped(onnx_file):
    def refuse(logits):
        raise ValueError("no such kernel")

    (record,) = on(Kernel(refuse), onnx_file(SOFTMAX))
    assert (record.verdict, record.reason) == ("skipped", "alone it does not run: ValueError: no such kernel")


def test_a_runtime_that_dies_over_a_softmax_is_not_asked_for_the_next(onnx_file):
    def die(logits):
        raise ProcessDiedError("it ended with signal 11")

    (record,) = on(Kernel(die), onnx_file(THREE))
    assert (record.verdict, record.findings) == ("errored", ("OA309",))


# In a verification, and in what it leaves


def verified(path: Path, *runtimes: str) -> list[Any]:
    return list(verify_artifact(read_artifact(path), Plan(runtimes=select(runtimes))))


def test_a_verification_says_where_the_softmax_breaks(onnx_file):
    records = verified(onnx_file(NAIVE), "ort-cpu", "onnx-reference")
    seen = [record for record in records if isinstance(record, HeadroomRecord)]
    assert {(one.runtime, one.profile) for one in seen} == {
        (runtime, profile_)
        for runtime in ("ort-cpu", "onnx-reference")
        for profile_ in ("one large", "all equal", "given")
    }
    assert all(one.agrees for one in seen)
    warned = [record for record in records if isinstance(record, FindingRecord) and record.code == "OA409"]
    assert {record.runtime for record in warned} == {"ort-cpu", "onnx-reference"}


def test_a_verification_of_a_sound_softmax_is_quiet(onnx_file):
    records = verified(onnx_file(SOFTMAX), "ort-cpu", "onnx-reference")
    seen = [record for record in records if isinstance(record, HeadroomRecord)]
    assert {one.verdict for one in seen} == {"passed"}
    assert not [record for record in records if isinstance(record, FindingRecord) and record.code in ("OA408", "OA409", "OA410")]  # fmt: skip


def record(**changes: Any) -> HeadroomRecord:
    base = HeadroomRecord(
        model="mha", variant="decomposed", opset=18, dtype="float32", artifact_sha256="ab", runtime="ort-cpu", case=CASE,
        softmax="p", form="Exp/ReduceSum/Div", shifted=False, verdict="passed", profile="one large", keys=8,
        kept="float32", predicted_logit=88.7228, broke_at_logit=88.7277, tried_to_logit=256.0, given_largest_logit=5.5,
        headroom_log2=4.01, agrees=True,
    )  # fmt: skip
    return msgspec.structs.replace(base, **changes)


def row_of(*records: HeadroomRecord) -> dict[str, str]:
    table = headroom_table(records)
    (row,) = table.rows
    return dict(zip(table.columns, row, strict=True))


def test_the_table_shows_the_softmax_that_breaks_first():
    row = row_of(record(), record(softmax="q", broke_at_logit=81.2345, headroom_log2=2.5, agrees=False))
    shown = (row["softmaxes"], row["breaks at"], row["headroom (log2)"], row["agrees"])
    assert shown == ("2", "81.23", "2.5", "1 of 2")


def test_the_table_says_up_to_where_a_softmax_did_not_break():
    row = row_of(
        record(
            shifted=True,
            predicted_logit=None,
            broke_at_logit=None,
            tried_to_logit=65504.0,
            headroom_log2=None,
        )
    )
    assert (row["predicted"], row["breaks at"], row["headroom (log2)"]) == (
        "never",
        "never up to 6.55e+04",
        "n/a",
    )


def test_what_was_not_tried_is_not_shown_as_unbreakable():
    row = row_of(
        record(
            verdict="skipped",
            reason="no",
            profile=None,
            broke_at_logit=None,
            predicted_logit=None,
            agrees=None,
        )
    )
    assert (row["verdict"], row["predicted"], row["breaks at"], row["agrees"]) == (
        "skipped",
        "n/a",
        "n/a",
        "n/a",
    )


def test_the_csv_is_unrounded():
    assert "88.7277" in csv_of(HeadroomRecord, [record()])


@pytest.mark.parametrize(("changes", "code"), [({}, 1), ({"known": "counter-example"}, 3)])
def test_a_softmax_that_breaks_too_early_fails_the_run_unless_it_is_known(changes, code):
    (run,) = (
        one
        for one in conclude([record(verdict="failed", **changes)], duration_s=1.0)
        if isinstance(one, RunRecord)
    )
    assert run.exit_code == code


def test_data_beyond_what_equal_logits_bear_is_said_to_be_there(onnx_file):
    seen = headroom_of(onnx_file(NAIVE), largest=87.5).on(stage(Kernel(naive)), None)
    (text,) = (item.message for one, items in seen for item in items if one.profile == "all equal")
    assert text.endswith("the given data has 87.5, though not in such a row")


# Sums that are not one, and logits that cannot grow

WRITTEN = {
    "a power of two": "e = Pow (two, x) t = ReduceSum (e, l) p = Div (e, t)",
    "an epsilon": "e = Exp (x) t = ReduceSum (e, l) u = Add (t, epsilon) p = Div (e, u)",
    "a least sum": "e = Exp (x) t = ReduceSum (e, l) u = Max (t, epsilon) p = Div (e, u)",
    "one more": "e = Exp (x) t = ReduceSum (e, l) u = Add (t, one) p = Div (e, u)",
    "a logarithm": "e = Exp (x) t = ReduceSum (e, l) r = Log (t) p = Sub (x, r)",
    "absolute values": "e = Exp (x) t = ReduceL1 (e, l) p = Div (e, t)",
}


def written(nodes: str, *, more: str = "", out: str = "float[rows, n] p") -> str:
    constants = (
        "int64[1] l = {-1}, float two = {2.0}, float one = {1.0}, float epsilon = {1e-6}, float cap = {30.0}"
    )
    return f"written (float[rows, n] x{more}) => ({out}) <{constants}> {{ {nodes} }}"


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("form", WRITTEN)
def test_break_is_foreseen_however_the_softmax_is_written(form, runtime, onnx_file):
    (party,) = select((runtime,))
    records = on(party, onnx_file(written(WRITTEN[form]), opset=18))
    assert [record.profile for record in records] == ["one large", "all equal", "given"]
    assert all(record.agrees and record.verdict == "passed" for record in records)
    largest = 128.0 if form == "a power of two" else OVERFLOW["float32"]
    assert records[0].broke_at_logit == pytest.approx(largest, rel=1e-3)


@pytest.mark.parametrize(
    ("nodes", "more", "why"),
    [
        ("d = Div (x, cap) h = Tanh (d) c = Mul (h, cap) e = Exp (c) t = ReduceSum (e, l) p = Div (e, t)", "", "between -30 and 30"),
        ("e = Exp (x) t = ReduceSum (e, l) o = MatMul (e, v) p = Div (o, t)", ", float[n, n] v", "divides the product"),
        ("h = ReduceMax (x, l) d = Sub (x, h) e = Exp (d) t = ReduceSum (e, l) s = Neg (h) a = Exp (s) u = Add (t, a) p = Div (e, u)", "", "is computed"),
    ],
)  # fmt: skip
def test_what_no_softmax_alone_would_show_is_left_out(nodes, more, why, onnx_file):
    (party,) = select(("ort-cpu",))
    out = "float[rows, n] p"
    (record,) = on(party, onnx_file(written(nodes, more=more, out=out), opset=18))
    assert (record.verdict, why in record.reason) == ("skipped", True), record.reason


def test_softmax_in_a_function_is_tried_where_it_is_called(tmp_path):
    text = (
        '<ir_version: 10, opset_import: ["": 18, "own": 1]> '
        "calling (float[rows, n] x) => (float[rows, n] y) { a = own.soft (x) y = Identity (a) } "
        '<domain: "own", opset_import: ["" : 18]> soft (a) => (p) '
        "{ l = Constant <value_ints = [-1]> () e = Exp (a) t = ReduceSum (e, l) p = Div (e, t) }"
    )
    (party,) = select(("ort-cpu",))
    path = tmp_path / "calling.onnx"
    path.write_bytes(onnx.parser.parse_model(text).SerializeToString())
    records = on(party, path)
    assert {record.verdict for record in records} <= {"passed", "skipped"}
    assert all("function" in record.reason or record.agrees for record in records)
