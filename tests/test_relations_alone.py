"""Relations with the reference switched off: each of these faults is caught by a relation alone, the clean files by none."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import msgspec
import numpy as np
import onnx
import pytest

from onnx_attest.export import export_entry
from onnx_attest.models import resolve
from onnx_attest.models.contract import TensorSpec
from onnx_attest.verify import verify
from onnx_attest.verify.engine import Plan, verify_artifact
from onnx_attest.verify.expected import Expected
from onnx_attest.verify.metamorphic.document import markdown
from onnx_attest.verify.metamorphic.layout import Layout, is_bare, layout_of
from onnx_attest.verify.metamorphic.relation import ABOUT
from onnx_attest.verify.metamorphic.structure import structure_of
from onnx_attest.verify.oracle.ops.operator import UnsupportedOperatorError
from onnx_attest.verify.outcome import conclude
from onnx_attest.verify.power.mutants import mutants
from onnx_attest.verify.power.sites import find_sites
from onnx_attest.verify.power.workbench import Workbench
from onnx_attest.verify.records import CellRecord, RelationRecord
from onnx_attest.verify.report.relations import relations as relations_report
from onnx_attest.verify.runtimes.isolated import in_this_process
from onnx_attest.verify.runtimes.registry import select
from onnx_attest.verify.signature import read_signature

MODELS = ("padded", "torch-sdpa-causal", "cached")
CLEAN = ("sdpa-decomposed-18", "mha-attention-23", "causal-decomposed-18", "causal-attention-23",
         "padded-decomposed-18", "padded-attention-23", "torch-sdpa-causal-decomposed-18",
         "torch-sdpa-causal-attention-23", "cached-decomposed-18", "cached-attention-23")  # fmt: skip
TRACED = 7
DOCS = Path(__file__).parent.parent / "docs" / "relations.md"


@pytest.fixture(scope="module")
def files(exported, tmp_path_factory):
    folder = tmp_path_factory.mktemp("relations")
    more = [made for name in MODELS for made in export_entry(resolve(name), folder)]
    return {**exported, **{artifact.path.stem: artifact for artifact in more}}


def relations(artifact, **plan):
    runtimes = (in_this_process(select(("ort-cpu",))[0]),)
    records = list(verify_artifact(artifact, Plan(runtimes=runtimes, relations_only=True, **plan)))
    assert [record for record in records if isinstance(record, CellRecord)] == []
    return [record for record in records if isinstance(record, RelationRecord)]


def broken(artifact):
    return [record.relation for record in relations(artifact) if record.verdict == "failed"]


def with_model(artifact, model, tmp_path):
    """Return the artifact with another graph under the same contract, as if it had been exported like this."""
    data = model.SerializeToString()
    path = tmp_path / "mutant.onnx"
    path.write_bytes(data)
    sha = hashlib.sha256(data).hexdigest()
    return replace(
        artifact, path=path, sha256=sha, manifest=msgspec.structs.replace(artifact.manifest, sha256=sha)
    )


def mutant_of(model, kind, size):
    found = mutants(model, traced_length=TRACED)
    return next(one.model for one in found if one.fault == kind and size in (None, one.size))


@pytest.mark.parametrize("stem", CLEAN)
def test_a_clean_file_keeps_all_that_its_contract_promises(files, stem):
    seen = relations(files[stem])
    asked = [record for record in seen if record.asked_by]
    assert {record.asked_by for record in asked} == {"contract"}
    assert len(asked) >= 5
    assert [(record.relation, record.reason) for record in asked if record.verdict != "passed"] == []


@pytest.mark.parametrize(
    ("stem", "kind", "size", "caught"),
    [
        ("causal-decomposed-18", "causal-future", None, "causal-future"),
        ("causal-attention-23", "causal-missing", None, "causal-prefix"),
        ("causal-decomposed-18", "mask-fill", -30.0, "causal-future"),
        ("causal-attention-23", "key-dropped", None, "causal-prefix"),
        ("padded-attention-23", "mask-ignored", None, "padding-trimmed"),
        ("padded-decomposed-18", "mask-fill", -10.0, "masked-keys"),
        ("padded-decomposed-18", "heads-interleaved", None, "padding-trimmed"),
        ("torch-sdpa-causal-attention-23", "causal-alignment", None, "causal-prefix"),
        ("torch-sdpa-causal-attention-23", "heads-rolled", None, "values-range"),
        ("cached-attention-23", "causal-alignment", None, "cache-step"),
        ("cached-decomposed-18", "causal-future", None, "cache-step"),
        ("cached-attention-23", "key-dropped", None, "chunked-prefill"),
        ("cached-decomposed-18", "key-stale", None, "chunked-prefill"),
        ("sdpa-decomposed-18", "key-duplicated", None, "keys-duplicated"),
        ("sdpa-decomposed-18", "traced-length", None, "keys-permuted"),
        ("sdpa-decomposed-18", "value-rolled", None, "keys-permuted"),
        ("sdpa-decomposed-18", "softmax-plus-one", None, "values-ones"),
        ("sdpa-decomposed-18", "softmax-axis", None, "keys-shifted"),
        ("sdpa-decomposed-18", "weights-fp16", None, "values-ones"),
        ("sdpa-decomposed-18", "accumulate-fp16", None, "values-doubled"),
        ("sdpa-decomposed-18", "int8-scale", None, "batch-singles"),
    ],
)
def test_a_fault_of_the_attention_is_caught_without_any_reference(files, tmp_path, stem, kind, size, caught):
    model = read_signature(files[stem]).model
    assert caught in broken(with_model(files[stem], mutant_of(model, kind, size), tmp_path))


def sequences_mixed(bench: Workbench) -> None:
    """A thousandth of the sequence before is in each."""

    def change(value: str) -> str:
        rolled = bench.op("Concat", bench.part(value, -1, None, 0), bench.part(value, 0, -1, 0), axis=0)
        return bench.op("Add", value, bench.op("Mul", rolled, bench.constant(1e-3, np.float32)))

    bench.replace("output", change)


def normalised_over_the_batch(bench: Workbench) -> None:
    """The outputs lose the mean over all sequences, as with a normalisation that was left in training mode."""

    def change(value: str) -> str:
        mean = bench.op("ReduceMean", value, bench.constant([0]), keepdims=1)
        return bench.op("Sub", value, bench.op("Mul", mean, bench.constant(1e-3, np.float32)))

    bench.replace("output", change)


def another_each_time(bench: Workbench) -> None:
    """Dropout that was left on, at a size that no tolerance of 1e-5 would see."""

    def change(value: str) -> str:
        return bench.op("Add", value, bench.op("RandomNormalLike", value, scale=1e-6))

    bench.replace("output", change)


def cache_off_by_one(bench: Workbench) -> None:
    """The cache is read from one place further on, the oldest entry comes last."""
    (node,) = [node for node in bench.graph.node if "past_value" in node.input and node.op_type == "Concat"]
    rolled = bench.op(
        "Concat", bench.part("past_value", 1, None, 2), bench.part("past_value", 0, 1, 2), axis=2
    )
    node.input[list(node.input).index("past_value")] = rolled


def cache_not_written(bench: Workbench) -> None:
    """The newest key of the cache that is given back is the one before it."""

    def change(value: str) -> str:
        return bench.op("Concat", bench.part(value, 0, -1, 2), bench.part(value, -2, -1, 2), axis=2)

    bench.replace("present_key", change)


@pytest.mark.parametrize(
    ("stem", "put_in", "caught"),
    [
        ("mha-decomposed-18", sequences_mixed, "batch-others"),
        ("mha-decomposed-18", normalised_over_the_batch, "batch-singles"),
        ("mha-decomposed-18", another_each_time, "run-twice"),
        ("cached-decomposed-18", cache_off_by_one, "chunked-prefill"),
        ("cached-decomposed-18", cache_not_written, "cache-step"),
    ],
)
def test_a_fault_around_the_attention_is_caught_without_any_reference(
    files, tmp_path, stem: str, put_in: Callable[[Workbench], None], caught: str
):
    bench = Workbench(read_signature(files[stem]).model)
    put_in(bench)
    assert caught in broken(with_model(files[stem], bench.finish(), tmp_path))


def test_a_file_without_a_contract_is_asked_nothing_but_says_what_holds(files, tmp_path):
    path = tmp_path / "bare.onnx"
    path.write_bytes(files["causal-decomposed-18"].path.read_bytes())
    report = verify(path, runtimes=["ort-cpu", "onnx-reference"], plan=Plan(relations_only=True))
    seen = {record.relation: record for record in report.records
            if isinstance(record, RelationRecord) and record.runtime == "ort-cpu"}  # fmt: skip
    assert {name: record.holds for name, record in seen.items() if record.holds == "no"} == {
        "tokens-permuted": "no"
    }
    assert (seen["causal-future"].holds, seen["causal-future"].asked_by) == ("bitwise", "")
    assert (report.verdict, report.run.exit_code) == ("inconclusive", 3)


def test_with_the_reference_the_graph_itself_says_what_has_to_hold(files, tmp_path):
    path = tmp_path / "bare.onnx"
    path.write_bytes(files["causal-decomposed-18"].path.read_bytes())
    report = verify(path, runtimes=["ort-cpu"], input_shapes={"X": (2, 5, 45)})
    seen = {record.relation: record for record in report.records if isinstance(record, RelationRecord)}
    assert (seen["causal-future"].asked_by, seen["causal-future"].verdict) == ("graph in float64", "passed")
    assert (seen["tokens-permuted"].asked_by, seen["tokens-permuted"].holds) == ("", "no")


def test_a_promise_that_the_graph_itself_breaks_is_the_file_s_fault(files, tmp_path):
    artifact = files["causal-decomposed-18"]
    model = mutant_of(read_signature(artifact).model, "causal-missing", None)
    report = verify(with_model(artifact, model, tmp_path), runtimes=["ort-cpu"])
    found = [item for item in report.findings if item.code == "OA504"]
    assert sorted(item.message.partition(":")[0] for item in found) == ["causal-future", "causal-prefix"]


def test_the_command_says_so_and_exits_with_it(files, command):
    answer = command("verify", files["sdpa-decomposed-18"].path, "--relations-only", "--runtime", "ort-cpu")
    assert answer.code == 0, answer
    assert answer.out.startswith("**passed**: no cells; relations 18 passed; exit code 0"), answer.out


def test_projected_inputs_are_no_bare_attention(onnx_file):
    graph = (
        "g (float[B,N,4] Q, float[B,N,4] K, float[B,N,4] V) => (float[B,N,4] y) <float[4] b = {1.0, 2.0, 3.0, 4.0}> {"
        " projected = Add(V, b) y = Attention(Q, K, projected) }"
    )
    model = onnx.load(onnx_file(graph, opset=23))
    assert is_bare(model, ["Q", "K"])
    assert not is_bare(model, ["Q", "K", "V"])


def test_the_layouts_of_the_catalogue():
    wanted = {"sdpa": "bare", "mha": "self", "cross": "cross", "cached": "cached", "torch-sdpa-gqa": "bare"}
    empty = onnx.helper.make_model(onnx.helper.make_graph([], "g", [], []))
    assert {name: layout_of(resolve(name).contract, empty).form for name in wanted} == wanted


def test_an_output_without_axes_counts_no_keys():
    outputs = (TensorSpec("p", ("batch", "n", "n"), role="output"), TensorSpec("sum", (), role="output"))
    contract = msgspec.structs.replace(resolve("sdpa").contract, outputs=outputs)
    assert Layout(contract, "self", "batch", "n", "n").weights() == {"p"}


def test_the_relations_are_documented_in_the_order_of_the_records(files):
    order = list(ABOUT)
    told = [record.relation for record in relations(files["sdpa-decomposed-18"])]
    assert all(order.index(a) < order.index(b) for a, b in pairwise(told))


def test_the_documentation_is_the_relations_themselves():
    assert DOCS.read_text() == markdown()


def test_the_report_tells_facts_and_what_is_broken(files, tmp_path):
    artifact = files["causal-decomposed-18"]
    mutant = mutant_of(read_signature(artifact).model, "causal-future", None)
    seen = [*relations(artifact), *relations(with_model(artifact, mutant, tmp_path))]
    text = relations_report(seen)
    not_kept, _, rest = text.partition("## What has to hold")
    assert [line.split("|")[5].strip() for line in not_kept.splitlines() if "failed" in line] == [
        "causal-future", "causal-prefix",
    ]  # fmt: skip
    assert "| tokens-permuted | does not hold |" in " ".join(rest.split())
    assert "| batch-others | bitwise | ort-cpu | 2 | 2 | 0 | 0 | 0 | 0 |" in " ".join(rest.split())


@pytest.mark.parametrize(("with_cells", "verdict"), [(True, "passed"), (False, "inconclusive")])
def test_what_the_bounds_cannot_tell_counts_only_where_there_is_no_reference(files, with_cells, verdict):
    artifact = files["causal-decomposed-18"]
    seen = relations(artifact)
    unknown = [msgspec.structs.replace(record, verdict="inconclusive", holds="unknown") for record in seen]
    cell = CellRecord(
        model="causal", variant="decomposed", opset=18, dtype="float32", artifact_sha256=artifact.sha256,
        runtime="ort-cpu", runtime_version="1", case=seen[0].case, verdict="passed",
    )  # fmt: skip
    records = [*([cell] if with_cells else []), *unknown]
    assert conclude(records, duration_s=0.0)[-1].verdict == verdict


@pytest.mark.pinned
@pytest.mark.parametrize(
    ("node", "depends"),
    [("y = ReduceSum (x, last)", True), ("y = Exp (x)", False), ("y = Softmax <axis = -1> (x)", False)],
)
def test_why_permuted_rows_have_other_bits_where_the_softmax_is_written_out(node, depends):
    """docs/relations.md names the operator; if this fails, ONNX Runtime has changed and the page with it."""
    import onnxruntime

    model = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["" : 18]> g (float[n, m] x) => (float[n, k] y) <int64[1] last = {{-1}}> {{ {node} }}'
    )
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    x = np.random.default_rng(0).standard_normal((5, 9)).astype(np.float32)
    order = [4, 2, 0, 3, 1]
    whole, permuted = (session.run(None, {"x": rows})[0] for rows in (x, x[order]))
    assert np.array_equal(whole[order], permuted) is not depends


def test_without_a_bound_a_relation_is_inconclusive_and_nothing_raises(files, monkeypatch):
    """One infinity stands for all of an output then, and parts of it are compared."""

    def unknown(*arguments: object) -> None:
        raise UnsupportedOperatorError("an operator that the oracle lacks")

    stem = "torch-sdpa-causal-decomposed-18"
    monkeypatch.setattr(Expected, "evaluate_graph", unknown)
    without = {one.relation: (one.verdict, one.holds) for one in relations(files[stem])}
    assert ("inconclusive", "unknown") in without.values()
    assert {verdict for verdict, _ in without.values()} <= {"passed", "inconclusive"}


def bare(nodes: str, constants: str = "") -> onnx.ModelProto:
    return onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 18]> g (float[batch, n, 4] q, float[batch, n, 4] k, float[batch, n, 4] v, '
        f"float[batch, n, 1] sink, float[n, 4] c, float[n, 4] s) => (float[batch, n, 4] y) <float half = {{0.5}}, "
        "int64[1] l = {-1}, int64[1] o = {0}, int64[1] i = {2}, int64[1] j = {4}, float cap = {2.0}> "
        f"{{ {nodes} }}"
    )


ROTATED = (
    "{0}1 = Slice ({0}, o, i, l) {0}2 = Slice ({0}, i, j, l) {0}3 = Neg ({0}2) {0}r = Concat <axis = -1> ({0}3, {0}1) "
    "{0}a = Mul ({0}, c) {0}b = Mul ({0}r, s) {0}t = Add ({0}a, {0}b) "
)
SCALED = "a = MatMul (q, kt) t = Mul (a, half) "
TURNED = "kt = Transpose <perm = [0, 2, 1]> (k) "


@pytest.mark.parametrize(
    ("nodes", "said"),
    [
        (TURNED + SCALED + "p = Softmax <axis = -1> (t) y = MatMul (p, v)", (True, True)),
        (TURNED + SCALED + "x = Concat <axis = -1> (t, sink) w = Softmax <axis = -1> (x) p = Slice (w, o, l, l) y = MatMul (p, v)", (False, False)),
        (TURNED + SCALED + "d = Div (t, cap) h = Tanh (d) u = Mul (h, cap) p = Softmax <axis = -1> (u) y = MatMul (p, v)", (True, False)),
        (ROTATED.format("q") + ROTATED.format("k") + "kt = Transpose <perm = [0, 2, 1]> (kt0) a = MatMul (qt, kt) z = Mul (a, half) "
         "p = Softmax <axis = -1> (z) y = MatMul (p, v)", (True, False)),
        ("n0 = ReduceL2 (k, l) u = Div (k, n0) kt = Transpose <perm = [0, 2, 1]> (u) " + SCALED + "p = Softmax <axis = -1> (t) y = MatMul (p, v)", (True, False)),
    ],
    ids=["plain", "sink", "softcap", "rotated", "unit keys"],
)  # fmt: skip
def test_no_formula_is_promised_that_the_graph_does_not_have(nodes: str, said: tuple[bool, bool]):
    if "kt0" in nodes:
        nodes = nodes.replace("kt = Add (ka, kb)", "kt0 = Add (ka, kb)")
    assert structure_of(bare(nodes), "q", "k") == said


def test_a_softcap_that_is_meant_breaks_no_promise(files, tmp_path):
    artifact = files["sdpa-decomposed-18"]
    bench = Workbench(read_signature(artifact).model)
    (site,) = find_sites(bench)
    cap = bench.constant(2.0, np.float32)
    bench.replace(
        site.logits, lambda value: bench.op("Mul", bench.op("Tanh", bench.op("Div", value, cap)), cap)
    )
    capped = with_model(artifact, bench.finish(), tmp_path)
    assert broken(capped) == []
    seen = {record.relation: record for record in relations(capped)}
    assert (seen["keys-shifted"].asked_by, seen["keys-shifted"].holds) == ("", "no")
    assert seen["values-ones"].verdict == "passed"
