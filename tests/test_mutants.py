"""The fault injector: every mutant is a valid model that runs, and does what its class says, no more and no less."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from numpy.typing import NDArray
from onnx.backend.test.case.node import collect_testcases
from onnx.reference import ReferenceEvaluator

from onnx_attest.export import export_entry
from onnx_attest.export.artifact import Artifact
from onnx_attest.models.entry import resolve
from onnx_attest.verify.arithmetic import PROFILES
from onnx_attest.verify.cases import make_inputs
from onnx_attest.verify.oracle.bounded import exact
from onnx_attest.verify.oracle.graph import GraphOracle, constants_of
from onnx_attest.verify.power.fault import CLASSES
from onnx_attest.verify.power.mutants import Mutant, inapplicable, mutants
from onnx_attest.verify.power.precision import BLOCKS, INT8_SCALE_ERROR
from onnx_attest.verify.power.sites import find_sites, untouched
from onnx_attest.verify.power.workbench import Edge, Workbench
from onnx_attest.verify.records import CORRECT, CaseRecord

Array = NDArray[Any]
TRACED = 7
"""Of seq_len, and of q_len, in the catalogue."""
SAME_IN_FLOAT64 = 2.0**-40
"""Two evaluations in float64 whose sums have some dozens of terms; an error of float32 is 2^16 times as large."""
D_K, D_V, HEADS, QUERIES, KEYS = 20, 12, 5, 9, 13
STEMS = (
    "sdpa-decomposed-18", "self-attention-decomposed-18", "self-attention-attention-24", "mha-decomposed-18",
    "mha-attention-23", "mha-attention-24", "causal-decomposed-18", "causal-attention-23", "sdpa-naive-decomposed-18",
    "sdpa-unscaled-decomposed-18",
)  # fmt: skip
FORMS = ("decomposed-18", "attention-23")
GRAPHS = ("torch-sdpa", "torch-sdpa-causal", "torch-sdpa-gqa", "cached")


@pytest.fixture(scope="module")
def four_axes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Artifact]:
    """Exports whose inputs and output are those of the attention itself, and one with a cache."""
    folder: Path = tmp_path_factory.mktemp("four_axes")
    results = [result for name in GRAPHS for result in export_entry(resolve(name), folder)]
    return {result.path.stem: result for result in results if isinstance(result, Artifact)}


def read(artifact: Artifact) -> onnx.ModelProto:
    return onnx.load(artifact.path, format="protobuf")


def feed(
    artifact: Artifact, axes: dict[str, int] | None = None, mask: str | None = "holes"
) -> dict[str, Array]:
    """Return inputs at other sizes than the traced ones."""
    assert artifact.manifest is not None
    contract = artifact.manifest.contract
    sizes = axes or {"batch": 3, "seq_len": 11, "past_len": 4, "q_len": QUERIES, "kv_len": KEYS}
    sizes = {name: sizes[name] for name in contract.symbolic_axes()}
    return make_inputs(contract, CaseRecord(name="other", axes=sizes, mask=mask, seed=5))


def run(model: onnx.ModelProto, inputs: dict[str, Array]) -> list[Array]:
    """Return the outputs of ONNX Runtime's CPU provider, with all its optimisations."""
    ort = pytest.importorskip("onnxruntime")
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    outputs: list[Array] = session.run(None, inputs)
    return outputs


def in_float64(model: onnx.ModelProto, inputs: dict[str, Array]) -> Array:
    """Return the first output as the oracle has it."""
    oracle = GraphOracle(model)
    return oracle.evaluate(inputs, PROFILES["fp64"]).outputs[oracle.outputs[0]].value


@pytest.mark.parametrize("stem", STEMS)
def test_every_class_is_made_or_its_absence_is_explained(exported, stem):
    model = read(exported[stem])
    made = {mutant.fault for mutant in mutants(model, traced_length=TRACED)} - {CORRECT}
    reasons = inapplicable(model, traced_length=TRACED)
    assert made | set(reasons) == set(CLASSES)
    assert made & set(reasons) == set()
    assert all(reasons.values())


@pytest.mark.parametrize("stem", STEMS)
def test_every_mutant_is_valid_and_runs_at_another_length(exported, stem):
    artifact = exported[stem]
    model, inputs = read(artifact), feed(artifact)
    shapes = [output.shape for output in run(model, inputs)]
    before = model.SerializeToString()
    for mutant in mutants(model, traced_length=TRACED):
        onnx.checker.check_model(mutant.model, full_check=True)
        assert_same_signature(mutant.model, model)
        assert [output.shape for output in run(mutant.model, inputs)] == shapes, mutant.label
    assert model.SerializeToString() == before  # the file's own graph stays as it was


def assert_same_signature(mutant: onnx.ModelProto, model: onnx.ModelProto) -> None:
    assert list(mutant.graph.input) == list(model.graph.input)
    assert list(mutant.graph.output) == list(model.graph.output)
    assert list(mutant.opset_import) == list(model.opset_import)


@pytest.mark.parametrize("name", [*STEMS, *(f"{name}-{form}" for name in GRAPHS for form in FORMS)])
def test_correct_rewriting_computes_the_same(exported, four_axes, name):
    """Exactly in float64, and on ONNX Runtime within the bound that the oracle has for the file."""
    artifact = (exported | four_axes)[name]
    model, inputs = read(artifact), feed(artifact)
    expected = GraphOracle(model).evaluate(inputs, PROFILES["fp32"]).outputs
    correct = [mutant for mutant in mutants(model) if mutant.fault == CORRECT]
    assert len(correct) == (2 if "attention-2" in name else 1)
    for mutant in correct:
        assert_close(in_float64(mutant.model, inputs), next(iter(expected.values())).value)
        for output, bounded in zip(run(mutant.model, inputs), expected.values(), strict=True):
            assert (np.abs(output - bounded.value) <= bounded.errors()).all(), mutant.label


def assert_close(value: Array, expected: Array, label: str = "") -> None:
    assert value.shape == expected.shape, label
    np.testing.assert_allclose(value, expected, rtol=SAME_IN_FLOAT64, atol=SAME_IN_FLOAT64, err_msg=label)


def attention_cases() -> list[Any]:
    with np.errstate(all="ignore"):
        cases = collect_testcases(None)
    return [
        case
        for case in cases
        if [(n.op_type, n.domain) for n in case.model.graph.node] == [("Attention", "")]
    ]


def test_node_cases_of_onnx_taken_apart():
    """Each of ONNX's own cases of Attention gives what it gives as nodes, or is refused with a reason."""
    opened = 0
    for case in attention_cases():
        correct = [mutant for mutant in mutants(case.model) if mutant.fault == CORRECT]
        if not correct:
            assert "not taken apart" in inapplicable(case.model)["softmax-axis"], case.name
            continue
        opened += 1
        assert_gives_the_case(case, correct[0].model)
    assert opened > 50


def assert_gives_the_case(case: Any, model: onnx.ModelProto) -> None:
    # The cases were computed in their own dtype, in other steps: some roundings on numbers of about 1.
    for inputs, outputs in case.data_sets:
        named = zip((value.name for value in model.graph.input), map(as_array, inputs), strict=False)
        with np.errstate(all="ignore"):
            given = ReferenceEvaluator(model).run(None, dict(named))
        for value, expected in zip(given, map(as_array, outputs), strict=True):
            steps = 16 * float(np.finfo(np.float16 if expected.dtype.itemsize == 2 else np.float32).eps)
            assert value.dtype == expected.dtype, case.name
            np.testing.assert_allclose(
                value.astype(float), expected.astype(float), rtol=steps, atol=steps, err_msg=case.name
            )


def as_array(value: Any) -> Array:
    return onnx.numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else np.asarray(value)


def softmax(logits: Array, *, axis: int = -1, plus: float = 0.0, one: bool = False) -> Array:
    top = logits.max(axis, keepdims=True)
    exponentials = np.exp(logits - top)
    return exponentials / (exponentials.sum(axis, keepdims=True) + plus + (np.exp(-top) if one else 0.0))


def formula(mutant: Mutant, q: Array, k: Array, v: Array, allowed: Array, scale: float) -> Array | None:
    """Return what attention with this fault computes, written in NumPy; None for what only rounds."""
    queries, keys = q.shape[-2], k.shape[-2]
    rows, columns, middle = np.arange(queries)[:, None], np.arange(keys), keys // 2
    fault, fill, bias, weigh = mutant.fault, -np.inf, np.zeros(keys), softmax
    transposed = k.swapaxes(-1, -2)
    match fault:
        case "scale" | "scale-1/d" | "scale-d+1" | "scale-none" | "scale-twice":
            assert mutant.realised is not None
            scale *= 1 + mutant.realised
        case "causal-future":
            allowed = allowed | (columns == rows + 1)
        case "causal-misses-last":
            allowed = allowed & (columns != rows)
        case "causal-missing" | "mask-ignored":
            allowed = np.ones_like(allowed)
        case "causal-inverted":
            allowed = ~allowed
        case "causal-alignment":
            allowed = columns <= rows + keys - queries
        case "mask-fill":
            assert mutant.size is not None
            fill = mutant.size
        case "softmax-axis":
            weigh = functools.partial(softmax, axis=-2)
        case "softmax-no-max" | "none":
            pass
        case "softmax-epsilon":
            weigh = functools.partial(softmax, plus=float(np.float32(mutant.size)))
        case "softmax-plus-one":
            weigh = functools.partial(softmax, one=True)
        case "key-dropped":
            allowed = allowed & (columns != middle)
        case "key-duplicated":
            bias = np.where(columns == middle, float(np.float32(np.log(2))), 0.0)
        case "key-stale":
            stale = np.where(columns == middle, middle - 1, columns)
            transposed, v = transposed[..., stale], v[..., stale, :]
        case "key-reshaped":
            transposed = k.reshape(transposed.shape)
        case "value-rolled":
            v = np.roll(v, 1, axis=-2)
        case "traced-length":
            allowed = allowed & (columns < TRACED)
        case "heads-rolled" | "heads-interleaved":
            pass
        case _:
            return None
    logits = scale * q @ transposed + bias
    output = weigh(logits + np.where(allowed, 0.0, fill)) @ v
    if fault == "heads-rolled":
        return np.roll(output, 1, axis=1)
    if fault == "heads-interleaved":
        batch, heads, _, size = output.shape
        return output.reshape(batch, queries, heads, size).swapaxes(1, 2)
    return output


def scale_of(form: str) -> float:
    """Return the scale that a form of the graph has: as an operator's own, or as float32's root of it, twice."""
    return float(np.float32(D_K**-0.25)) ** 2 if form.startswith("decomposed") else D_K**-0.5


ROUNDS = {
    "weights-fp16", "weights-bf16", "logits-fp16", "logits-bf16", "products-tf32", "accumulate-fp16", "int8-scale",
}  # fmt: skip
"""Their effect is a rounding: exact evaluation does not have it."""


@pytest.mark.parametrize("name", ["torch-sdpa", "torch-sdpa-causal"])
@pytest.mark.parametrize("form", FORMS)
def test_each_fault_has_its_exact_effect(four_axes, name, form):
    """The mutant in float64 against the formula of its class; rows without any key are each form's own."""
    artifact = four_axes[f"{name}-{form}"]
    inputs = feed(artifact)
    q, k, v = (inputs[n].astype(np.float64) for n in "QKV")
    allowed = inputs["mask"] if "mask" in inputs else np.tril(np.ones((QUERIES, KEYS), bool))
    checked = set()
    for mutant in mutants(read(artifact), traced_length=TRACED):
        with np.errstate(invalid="ignore"):
            expected = formula(mutant, q, k, v, allowed, scale_of(form))
        if expected is None:
            assert mutant.fault in ROUNDS
            continue
        value = in_float64(mutant.model, inputs)
        open_rows = ~np.isnan(expected)  # a row, or a column, with nothing in it is NaN in the formula
        if mutant.fault == "softmax-axis" and "causal" in name:
            checked.add(
                mutant.fault
            )  # the last keys are seen by no query: every row has a NaN, or each form's own
            continue
        assert open_rows.mean() > 1 - 2 / QUERIES
        assert_close(value[open_rows], expected[open_rows], f"{mutant.fault}: {mutant.label}")
        checked.add(mutant.fault)
    own = {"causal-future", "causal-misses-last", "causal-missing", "causal-inverted", "causal-alignment"}
    absent = {"mask-ignored"} if name == "torch-sdpa-causal" else own
    assert checked == set(CLASSES) - ROUNDS - absent - {"bias-dropped"} | {CORRECT}


@pytest.mark.parametrize("form", FORMS)
def test_size_that_came_out_is_the_size_asked_for_but_for_one_rounding(four_axes, form):
    """A constant of float32 cannot be off by 1e-6 exactly: what came out is in the record."""
    step = 2.0**-23
    found = [m for m in mutants(read(four_axes[f"torch-sdpa-{form}"])) if m.fault == "scale"]
    assert [m.size for m in found] == [1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2]
    assert [m.above_fp32 for m in found] == [False, True, True, True, True, True]
    for mutant in found:
        assert mutant.size is not None
        assert mutant.realised is not None
        assert mutant.realised > 0
        assert abs(mutant.realised - mutant.size) <= step


@pytest.mark.parametrize("form", FORMS)
def test_cached_attention_is_realigned_at_its_other_end(four_axes, form):
    """With a cache the right end is the bottom right: the fault is the top left."""
    artifact = four_axes[f"cached-{form}"]
    found = {m.fault: m for m in mutants(read(artifact))}
    assert found["causal-alignment"].label == "aligned at the top left"
    inputs = feed(artifact)
    correct = in_float64(read(artifact), inputs)
    for fault in ("causal-future", "causal-misses-last", "causal-alignment"):
        changed = np.abs(in_float64(found[fault].model, inputs) - correct).max((0, 2)) > SAME_IN_FLOAT64
        # The last query has no future key; at the top left it lacks those that the cache moved it past.
        assert list(changed) == [True] * 10 + [fault != "causal-future"]


def test_baked_in_length_has_no_effect_up_to_it(exported):
    artifact = exported["causal-attention-23"]
    model = read(artifact)
    (mutant,) = (m for m in mutants(model, traced_length=TRACED) if m.fault == "traced-length")
    for length, same in ((TRACED - 1, True), (TRACED, True), (TRACED + 1, False)):
        inputs = feed(artifact, {"batch": 2, "seq_len": length})
        difference = np.abs(in_float64(mutant.model, inputs) - in_float64(model, inputs)).max()
        assert (difference <= SAME_IN_FLOAT64) == same
    assert "traced length" in inapplicable(model)["traced-length"]


@pytest.mark.parametrize("form", FORMS)
def test_dropped_bias_is_that_of_one_projection(exported, form):
    artifact = exported[f"mha-{form}"]
    model, inputs = read(artifact), feed(artifact)
    found = {m.label.split()[0]: m for m in mutants(model) if m.fault == "bias-dropped"}
    assert set(found) == {"query", "value", "output"}
    for what, mutant in found.items():
        name = f"{what}.bias"
        without = {name: exact(np.zeros_like(constants_of(model)[name]))}
        oracle = GraphOracle(model)
        expected = oracle.evaluate(inputs, PROFILES["fp64"], constants=without).outputs["output"].value
        assert_close(in_float64(mutant.model, inputs), expected, what)


def to_bits(x: Array, bits: int) -> Array:
    """Return float32 numbers rounded to nearest, ties to even, with so many significant bits, by their integers."""
    dropped = 24 - bits
    codes = x.astype(np.float32).view(np.uint32).astype(np.uint64)
    codes += (
        (np.uint64(1) << np.uint64(dropped - 1))
        - np.uint64(1)
        + ((codes >> np.uint64(dropped)) & np.uint64(1))
    )
    return (
        ((codes >> np.uint64(dropped)) << np.uint64(dropped)).astype(np.uint32).view(np.float32).astype(float)
    )


def blockwise(a: Array, b: Array) -> Array:
    total = np.zeros((*a.shape[:-1], b.shape[-1]))
    length = a.shape[-1]
    for block in range(BLOCKS):
        part = slice(length * block // BLOCKS, length * (block + 1) // BLOCKS)
        total = (total + a[..., part] @ b[..., part, :]).astype(np.float16).astype(float)
    return total


def as_int8(x: Array) -> Array:
    step = np.abs(x).max() / 127
    return np.rint(x / step) * step * (1 + INT8_SCALE_ERROR)


Rounded = Callable[[Array], Array]


def rounding_formula(
    fault: str, q: Array, k: Array, v: Array, allowed: Array, before: float, after: float
) -> Array:
    """Return attention with roundings where the class has them; q and k are scaled before, and their product after."""
    same: Rounded = lambda x: x  # noqa: E731
    half: Rounded = lambda x: x.astype(np.float16).astype(float)  # noqa: E731
    eight: Rounded = functools.partial(to_bits, bits=8)
    tf32: Rounded = functools.partial(to_bits, bits=11)
    operand = tf32 if fault == "products-tf32" else same
    cache = as_int8 if fault == "int8-scale" else same
    logit = {"logits-fp16": half, "logits-bf16": eight}.get(fault, same)
    weight = {"weights-fp16": half, "weights-bf16": eight}.get(fault, same)
    product = blockwise if fault == "accumulate-fp16" else np.matmul
    keys = cache(k * before).swapaxes(-1, -2)
    logits = logit(after * product(operand(q * before), operand(keys)))
    weights = weight(softmax(np.where(allowed, logits, -np.inf)))
    return np.asarray(product(operand(weights), operand(cache(v))))


@pytest.mark.parametrize("fault", sorted(ROUNDS))
@pytest.mark.parametrize("form", FORMS)
def test_rounding_faults_round_so_on_onnx_runtime(four_axes, form, fault):
    """The effect is that of the same rounding in NumPy, but for the few numbers that fall to the other side."""
    artifact = four_axes[f"torch-sdpa-{form}"]
    model, inputs = read(artifact), feed(artifact)
    (mutant,) = (m for m in mutants(model) if m.fault == fault)
    q, k, v = (inputs[n].astype(np.float64) for n in "QKV")
    before, after = (
        (float(np.float32(D_K**-0.25)), 1.0) if form.startswith("decomposed") else (1.0, D_K**-0.5)
    )
    arguments = (q, k, v, inputs["mask"], before, after)
    effect = rounding_formula(fault, *arguments) - rounding_formula("none", *arguments)
    seen = run(mutant.model, inputs)[0].astype(float) - run(model, inputs)[0]
    assert np.linalg.norm(effect) > 64 * np.linalg.norm(run(model, inputs)[0]) * 2.0**-24
    assert np.linalg.norm(seen - effect) < np.linalg.norm(effect) / 5


def test_split_rounds_exactly_to_eleven_bits():
    """Veltkamp's split in a graph: nearest, over the whole range that it does not overflow in."""
    from onnx_attest.verify.power.precision import _eleven_bits
    from onnx_attest.verify.power.workbench import Workbench

    model = onnx.parser.parse_model("""
    <ir_version: 10, opset_import: ["": 18]>
    g (float[n] x) => (float[n] y) { y = Identity (x) }
    """)
    bench = Workbench(model)
    bench.replace("y", lambda x: _eleven_bits(bench, x))
    rng = np.random.default_rng(0)
    x = (rng.standard_normal(4096) * 2.0 ** rng.integers(-90, 90, 4096)).astype(np.float32)
    np.testing.assert_array_equal(run(bench.finish(), {"x": x})[0], to_bits(x, 11))


TWICE = """
<ir_version: 10, opset_import: ["": OPSET]>
g (float[b, n, 8] x) => (float[b, n, 8] y) <float scale = {0.35}>
{
  k = Transpose <perm = [0, 2, 1]> (x)
  s = MatMul (x, k)
  t = Mul (s, scale)
  p = Softmax <axis = -1> (t)
  h = MatMul (p, x)
  r = Transpose <perm = [0, 2, 1]> (h)
  u = MatMul (h, r)
  w = Softmax (u)
  y = MatMul (w, h)
}
"""


def test_each_attention_gets_its_own_faults():
    model = onnx.parser.parse_model(TWICE.replace("OPSET", "18"))
    found = list(mutants(model))
    assert len({m.node for m in found if m.fault == "value-rolled"}) == 2
    first, second = (m.node for m in found if m.fault == "value-rolled")
    assert {m.node for m in mutants(model, nodes=[second])} == {"", second}
    # The second has no scale in the file: its queries are multiplied.
    (scaled,) = (m for m in found if m.node == second and m.size == 1e-3)
    assert scaled.realised == pytest.approx(1e-3, abs=2.0**-23)
    assert {m.fault for m in found if m.node == first} >= {"scale-twice", "scale-none"}


CONTRIB = """
<ir_version: 10, opset_import: ["": 18, "com.microsoft": 1]>
g (float[b, n, 8] x) => (float[b, n, 8] y) { y = com.microsoft.MultiHeadAttention <num_heads = 2> (x, x, x) }
"""


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (TWICE.replace("OPSET", "11"), "opset 11"),
        (
            '<ir_version: 10, opset_import: ["": 18]> g (float[n, 4] x) => (float[n, 4] y) { y = Softmax (x) }',
            "no attention was found",
        ),
        (
            CONTRIB,
            "com.microsoft.MultiHeadAttention, which is not taken apart",
        ),
    ],
)
def test_file_without_mutants_says_why(model, words):
    proto = onnx.parser.parse_model(model)
    assert list(mutants(proto)) == []
    reasons = inapplicable(proto)
    assert set(reasons) == set(CLASSES)
    assert all(words in reason for reason in reasons.values())


def test_softmax_over_classes_is_no_attention():
    model = onnx.parser.parse_model("""
    <ir_version: 10, opset_import: ["": 18]>
    g (float[n, 2] x, float[2, 3] v) => (float[n, 3] y) <float[2, 2] w = {1, 2, 3, 4}>
    { a = MatMul (x, w) p = Softmax (a) y = MatMul (p, v) }
    """)
    assert list(mutants(model)) == []


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("variant", ["decomposed", "attention"])
def test_graphs_in_half_precision_have_the_faults_that_make_sense(tmp_path, variant, dtype):
    """ONNX Runtime's CPU provider lacks most operators in bfloat16: these are checked only."""
    entry = resolve("causal")
    artifact = next(iter(export_entry(entry, tmp_path, variants=[variant], dtype=dtype)))
    assert isinstance(artifact, Artifact)
    model = read(artifact)
    inputs = {name: value.astype(np.float16) for name, value in feed(artifact).items()}
    found = list(mutants(model, traced_length=TRACED))
    for mutant in found:
        onnx.checker.check_model(mutant.model, full_check=True)
        if dtype == "float16":
            run(mutant.model, inputs)
    absent = {"products-tf32", "accumulate-fp16", "weights-fp16", "logits-fp16"}
    absent |= {"weights-bf16", "logits-bf16"} if dtype == "bfloat16" else set()
    assert absent <= set(inapplicable(model))
    assert {"scale", "causal-future", "softmax-plus-one", "int8-scale"} <= {m.fault for m in found}


def sites_in(nodes: str) -> tuple[list, list[str]]:
    text = (
        '<ir_version: 10, opset_import: ["": 18]> g (float[b, n, 4] q, float[b, 4, n] k, float[b, n, 4] v, float[n, 4] c, '
        "float[n, 4] s) => (float[b, n, 4] y) <float half = {0.5}, int64[1] o = {0}, int64[1] i = {2}, int64[1] j = {4}, "
        f"int64[1] l = {{-1}}, float far = {{-inf}}, float nil = {{0.0}}> {{ {nodes} }}"
    )
    bench = Workbench(onnx.parser.parse_model(text))
    return find_sites(bench), untouched(bench)


def test_a_scale_before_a_rotary_embedding_is_where_faults_of_the_scale_go():
    ((site,), others) = sites_in(
        "x = Mul (q, half) x1 = Slice (x, o, i, l) x2 = Slice (x, i, j, l) x3 = Neg (x2) r = Concat <axis = -1> (x3, x1) "
        "a = Mul (x, c) b0 = Mul (r, s) t = Add (a, b0) w = MatMul (t, k) p = Softmax <axis = -1> (w) y = MatMul (p, v)"
    )
    assert (site.scale, [scale.edge for scale in site.scales], others) == (0.5, [Edge("x", 1)], [])


@pytest.mark.parametrize(
    ("nodes", "why"),
    [
        (("m = ReduceMax (t, l) e0 = Equal (m, far) h = Where (e0, nil, m) d = Sub (t, h) e = Exp (d) z = ReduceSum (e, l) "
         "p = Div (e, z) y = MatMul (p, v)"), "a guard"),
        ("e = Exp (t) z = ReduceSum (e, l) u = Add (z, half) p = Div (e, u) y = MatMul (p, v)", "a guard"),
        ("e = Exp (t) z = ReduceSum (e, l) w = MatMul (e, v) y = Div (w, z)", "a guard"),
        ("g = LogSoftmax <axis = -1> (t) p = Exp (g) y = MatMul (p, v)", "LogSoftmax"),
        ("d = Max (t, far) p = Softmax <axis = -1> (d) y = MatMul (p, v)", "with Max between"),
    ],
)  # fmt: skip
def test_an_attention_that_a_rewriting_would_change_is_named_and_left_alone(nodes: str, why: str):
    found, (reason,) = sites_in(f"w0 = MatMul (q, k) t = Mul (w0, half) {nodes}")
    assert (found, why in reason) == ([], True), reason
