"""The finder: each way to write a softmax and an attention is found, with its parts, and what is neither is not."""

from __future__ import annotations

import math

import onnx
import pytest

from onnx_attest.verify.finder.find import find
from onnx_attest.verify.finder.found import Attention, Softmax
from onnx_attest.verify.finder.graph import NEAR
from onnx_attest.verify.static.rules import static_findings


def model(nodes: str, *, opset: int = 21, inputs: str = "", constants: str = "", functions: str = ""):
    """Return a model whose graph takes q (b, n, 8), k (b, 8, m) and v (b, m, 8)."""
    return onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["" : {opset}, "com.microsoft" : 1, "own" : 1, "ai.onnx.preview" : 1]>'
        f"g (float[b, n, 8] q, float[b, 8, m] k, float[b, m, 8] v{inputs}) => (float[b, n, 8] y)"
        f"{f' <{constants}>' if constants else ''} {{ {nodes} }} {functions}"
    )


def attention(*arguments, **options) -> Attention:
    (found,) = find(model(*arguments, **options)).attentions
    return found


def softmax(*arguments, **options) -> Softmax:
    (found,) = find(model(*arguments, **options)).softmaxes
    return found


NAIVE = "s = MatMul (q, k) e = Exp (s) t = ReduceSum <keepdims = 1> (e, last) "
LAST = "int64[1] last = {-1}"

# --- softmax ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("operator", ["Softmax", "LogSoftmax"])
def test_operator_is_a_softmax(operator: str):
    found = softmax(f"y = {operator} <axis = -1> (q)")
    assert (found.form, found.logits, found.weights, found.axis) == (operator, "q", "y", -1)
    assert (found.shifted, found.block) == (True, None)


def test_axis_is_counted_from_the_end():
    assert softmax("y = Softmax <axis = 2> (q)").axis == -1
    assert softmax("y = Softmax <axis = 1> (q)").axis == -2


def test_below_opset_13_all_axes_from_one_on_are_a_row():
    new, old = softmax("y = Softmax (q)"), softmax("y = Softmax (q)", opset=11)
    assert (new.axis, new.block) == (-1, None)
    assert (old.axis, old.block) == (None, 1)
    last = softmax("y = Softmax <axis = 2> (q)", opset=11)
    assert (last.axis, last.block) == (-1, None)


@pytest.mark.parametrize("end", ["y = Div (e, t)", "r = Reciprocal (t) y = Mul (e, r)", "r = Reciprocal (t) y = Mul (r, e)"])  # fmt: skip
def test_softmax_written_out_without_the_maximum_is_naive(end: str):
    found = softmax(NAIVE + end, constants=LAST)
    assert (found.shifted, found.logits, found.weights, found.axis) == (False, "s", "y", -1)


def test_softmax_written_out_with_the_maximum_is_not_naive():
    nodes = "h = ReduceMax (q, last) z = Sub (q, h) e = Exp (z) t = ReduceSum (e, last) y = Div (e, t)"
    found = softmax(nodes, constants=LAST)
    assert (found.shifted, found.logits) == (True, "q")


@pytest.mark.parametrize(
    ("first", "shifted"), [("", False), ("h = ReduceMax (x, last) q = Sub (x, h) ", True)]
)
def test_logarithm_of_a_softmax_written_out_is_found(first: str, shifted: bool):
    nodes = first + "e = Exp (q) t = ReduceSum (e, last) l = Log (t) y = Sub (q, l)"
    graph = model(nodes, constants=LAST)
    if shifted:
        graph.graph.input[0].name = "x"
    (found,) = find(graph).softmaxes
    assert (found.shifted, found.logits, found.axis) == (shifted, "x" if shifted else "q", -1)


def test_casts_between_the_steps_are_looked_through():
    nodes = NAIVE + "d = Cast <to = 1> (e) c = Cast <to = 1> (t) y = Div (d, c)"
    assert not softmax(nodes, constants=LAST).shifted


def test_guard_against_a_sum_of_zero_is_looked_through():
    found = softmax(NAIVE + "c = Add (t, tiny) y = Div (e, c)", constants=f"{LAST}, float tiny = {{1e-9}}")
    assert not found.shifted


@pytest.mark.parametrize("operator", ["BiasSoftmax <axis = 2, is_inner_broadcast = 0> (q, q)", "QLinearSoftmax <axis = 2, opset = 13> (q)"])  # fmt: skip
def test_fused_softmax_is_found(operator: str):
    assert softmax(f"y = com.microsoft.{operator}").form.startswith("com.microsoft.")


@pytest.mark.parametrize("nodes", ["e = Exp (q) t = ReduceSum (v, last) y = Div (e, t)", "e = Exp (q) y = Div (e, e)"])  # fmt: skip
def test_a_quotient_that_is_no_softmax_is_not_found(nodes: str):
    assert find(model(nodes, constants=LAST)).softmaxes == ()


def test_softmax_in_a_branch_is_found():
    branch = "{0} () => (float[b, n, 8] {0}y) {{ {0}y = Softmax <axis = -1> (q) }}"
    nodes = f"y = If (c) <then_branch = {branch.format('a')}, else_branch = {branch.format('b')}>"
    found = find(model(nodes, inputs=", bool c")).softmaxes
    assert [item.weights for item in found] == ["ay", "by"]


def test_softmax_in_a_function_is_found_where_it_is_called():
    function = '<domain: "own", opset_import: ["" : 21]> f (x) => (z) { z = Softmax <axis = -1> (x) }'
    assert softmax("y = own.f (q)", functions=function).weights == "y"


# --- attention as several nodes ---------------------------------------------------------------------------------

PLAIN = "s = MatMul (q, k) p = Softmax <axis = -1> (s) y = MatMul (p, v)"


def test_two_products_with_a_softmax_between_them_are_an_attention():
    found = attention(PLAIN)
    assert (found.query, found.key, found.value, found.output) == ("q", "k", "v", "y")
    assert (found.scale, found.masks, found.softcap, found.guard) == (1.0, (), 0.0, "")


@pytest.mark.parametrize(
    ("nodes", "on"),
    [
        ("s = MatMul (q, k) t = Mul (s, half)", {"logits"}),
        ("s = MatMul (q, k) t = Mul (half, s)", {"logits"}),
        ("s = MatMul (q, k) t = Div (s, two)", {"logits"}),
        ("a = Mul (q, half) t = MatMul (a, k)", {"q"}),
        ("a = Mul (k, half) t = MatMul (q, a)", {"k"}),
        ("a = Div (q, root) b = Div (k, root) t = MatMul (a, b)", {"q", "k"}),
        ("t = com.microsoft.FusedMatMul <alpha = 0.5> (q, k)", {"logits"}),
    ],
)
def test_scale_is_found_wherever_it_stands(nodes: str, on: set[str]):
    constants = f"float half = {{0.5}}, float two = {{2.0}}, float root = {{{math.sqrt(2)}}}"
    found = attention(f"{nodes} p = Softmax <axis = -1> (t) y = MatMul (p, v)", constants=constants)
    assert found.scale == pytest.approx(0.5, rel=2**-22)
    assert {scale.where for scale in found.scales} == on


@pytest.mark.parametrize(
    "nodes",
    [
        "a = Mul (q, half) c = Add (a, zero) t = MatMul (c, k)",
        "s = MatMul (q, k) a = Mul (s, half) t = Add (zero, a)",
    ],
)
def test_zero_added_to_a_scaled_value_hides_no_scale_and_is_no_mask(nodes: str):
    found = attention(
        f"{nodes} p = Softmax <axis = -1> (t) y = MatMul (p, v)",
        constants="float half = {0.5}, float zero = {0.0}",
    )
    assert (found.scale, found.masks) == (0.5, ())


def test_scale_that_is_no_constant_is_unknown():
    nodes = "s = MatMul (q, k) t = Mul (s, f) p = Softmax <axis = -1> (t) y = MatMul (p, v)"
    assert attention(nodes, inputs=", float f").scale is None


def test_added_mask_is_found_with_its_filler():
    nodes = "s = MatMul (q, k) bias = Where (m, zero, far) t = Add (s, bias) p = Softmax <axis = -1> (t) y = MatMul (p, v)"
    constants = "float zero = {0.0}, float far = {-10000.0}"
    (mask,) = attention(nodes, inputs=", bool[n, m] m", constants=constants).masks
    assert (mask.form, mask.value, mask.hiding, mask.before_softcap) == ("Add", "bias", -10000.0, False)


@pytest.mark.parametrize("order", ["m, s, far", "m, far, s"])
def test_where_is_a_mask_on_either_side(order: str):
    nodes = f"s = MatMul (q, k) t = Where ({order}) p = Softmax <axis = -1> (t) y = MatMul (p, v)"
    (mask,) = attention(nodes, inputs=", bool[n, m] m", constants="float far = {-inf}").masks
    assert (mask.form, mask.value, mask.hiding) == ("Where", "m", -math.inf)


@pytest.mark.parametrize(
    ("nodes", "before"),
    [
        ("d = Div (s, cap) h = Tanh (d) c = Mul (h, cap) t = Add (c, m)", False),
        ("a = Add (s, m) d = Div (a, cap) h = Tanh (d) t = Mul (h, cap)", True),
    ],
)
def test_order_of_softcap_and_mask_is_told(nodes: str, before: bool):
    nodes = f"s = MatMul (q, k) {nodes} p = Softmax <axis = -1> (t) y = MatMul (p, v)"
    found = attention(nodes, inputs=", float[n, m] m", constants="float cap = {30.0}")
    assert (found.softcap, found.masks[0].before_softcap, found.scales) == (30.0, before, ())


def test_dropout_and_guard_between_weights_and_product_are_passed():
    nodes = (
        "s = MatMul (q, k) p = Softmax <axis = -1> (s) n0 = IsNaN (p) w = Where (n0, zero, p) d = Dropout (w) "
        "y = MatMul (d, v)"
    )
    found = attention(nodes, constants="float zero = {0.0}")
    assert (found.guard, found.value) == ("NaN", "v")


def test_einsum_and_naive_softmax_are_an_attention():
    nodes = (
        'c = Einsum <equation = "bnd,bdm->bnm"> (q, k) e = Exp (c) t = ReduceSum (e, last) p = Div (e, t) '
        'y = Einsum <equation = "bnm,bmd->bnd"> (p, v)'
    )
    found = attention(nodes, constants=LAST)
    assert (found.softmax.shifted, found.product.output[0], found.value) == (False, "c", "v")
    assert found.head_size == 8


def test_weights_on_the_right_of_their_product_are_told_from_the_values():
    nodes = (
        "s = MatMul (q, k) p = Softmax <axis = -1> (s) w = Transpose <perm = [0, 2, 1]> (p) y = MatMul (v, w)"
    )
    assert attention(nodes).value == "v"


def test_maximum_subtracted_before_the_operator_is_no_mask():
    nodes = "s = MatMul (q, k) h = ReduceMax (s, last) t = Sub (s, h) p = Softmax <axis = -1> (t) y = MatMul (p, v)"
    assert attention(nodes, constants=LAST).masks == ()


def test_classifier_is_no_attention():
    constants = "float[8, 8] w = {" + ", ".join(["1.0"] * 64) + "}"
    found = find(
        model("s = MatMul (q, w) p = Softmax <axis = -1> (s) y = MatMul (p, w)", constants=constants)
    )
    assert (len(found.softmaxes), found.attentions) == (1, ())


# --- attention as an operator -----------------------------------------------------------------------------------


def test_attention_of_onnx_is_found_with_its_parts():
    nodes = "y = Attention <scale = 0.5, is_causal = 1, softcap = 20.0> (q, k, v, m)"
    found = attention(nodes, opset=23, inputs=", bool[n, m] m")
    assert (found.form, found.query, found.key, found.value) == ("Attention", "q", "k", "v")
    assert (found.scale, found.causal, found.softcap, found.is_operator) == (0.5, True, 20.0, True)
    assert [(mask.form, mask.value) for mask in found.masks] == [("Attention", "m")]


def test_default_scale_of_an_operator_is_the_usual_one():
    found = attention("y = Attention <q_num_heads = 2, kv_num_heads = 2> (q, k, v)", opset=23)
    assert (found.head_size, found.scale, found.scales) == (4, 0.5, ())


@pytest.mark.parametrize(
    ("operator", "causal"),
    [
        ("com.microsoft.MultiHeadAttention <num_heads = 2> (q, k, v)", False),
        ("com.microsoft.MultiHeadAttention <num_heads = 2, unidirectional = 1> (q, k, v)", True),
        ("com.microsoft.GroupQueryAttention <num_heads = 2, kv_num_heads = 1> (q, k, v)", True),
        ("com.microsoft.PackedMultiHeadAttention <num_heads = 2> (q, k, v)", False),
        ("ai.onnx.preview.FlexAttention (q, k, v)", False),
    ],
)
def test_operator_with_three_inputs_is_found(operator: str, causal: bool):
    found = attention(f"y = {operator}")
    assert (found.query, found.key, found.value, found.causal) == ("q", "k", "v", causal)


@pytest.mark.parametrize("operator", ["Attention", "QAttention", "PackedAttention"])
def test_operator_that_projects_its_input_has_it_for_all_three(operator: str):
    found = attention(f"y = com.microsoft.{operator} <num_heads = 2> (q, k, v)")
    assert (found.query, found.key, found.value) == ("q", "q", "q")


def test_attention_of_another_domain_is_not_taken_for_one():
    assert find(model("y = own.Attention (q, k, v)")).attentions == ()


# --- written otherwise -----------------------------------------------------------------------------------------

LOGITS = "a = MatMul (q, k) s = Mul (a, scale) "
SCALE = f"{LAST}, float scale = {{{1 / math.sqrt(8)}}}"
TURNED = "qt = Transpose <perm = [0, 2, 1]> (q) kt = Transpose <perm = [0, 2, 1]> (k) a = MatMul (kt, qt) s = Mul (a, scale) "
ROTATED = (
    "x1 = Slice (x, zero, four, last) x2 = Slice (x, four, eight, last) x3 = Neg (x2) r = Concat <axis = -1> (x3, x1) "
    "one = Mul (x, cos) other = Mul (r, sin) t = Add (one, other) "
)
HALVES = "int64[1] zero = {0}, int64[1] four = {4}, int64[1] eight = {8}"
INTERLEAVED = (
    "x1 = Slice (x, zero, four, last) x2 = Slice (x, four, eight, last) "
    "c1 = Mul (x1, ch) s1 = Mul (x2, sh) c2 = Mul (x2, ch) s2 = Mul (x1, sh) y1 = Sub (c1, s1) y2 = Add (c2, s2) "
    "t = Concat <axis = -1> (y1, y2) "
)

FORMS = {
    "keys first, softmax over the rows": (
        TURNED + "p = Softmax <axis = -2> (s) w = Transpose <perm = [0, 2, 1]> (p) y = MatMul (w, v)", "MatMul/Softmax/MatMul"
    ),
    "keys first, values transposed": (
        TURNED + "p = Softmax <axis = -2> (s) vt = Transpose <perm = [0, 2, 1]> (v) yt = MatMul (vt, p) "
        "y = Transpose <perm = [0, 2, 1]> (yt)", "MatMul/Softmax/MatMul"
    ),
    "keys first, as an einsum": (
        ('a = Einsum <equation = "bdj,bid->bji"> (k, q) s = Mul (a, scale) p = Softmax <axis = 1> (s) '
        'y = Einsum <equation = "bji,bjd->bid"> (p, v)'), "Einsum/Softmax/Einsum"
    ),
    "divided behind the values": (
        LOGITS + "h = ReduceMax (s, last) d = Sub (s, h) e = Exp (d) z = ReduceSum (e, last) o = MatMul (e, v) y = Div (o, z)",
        "MatMul/ReduceMax/Sub/Exp/ReduceSum/Div/MatMul",
    ),
    "an L1 norm": (
        LOGITS + "h = ReduceMax (s, last) d = Sub (s, h) e = Exp (d) z = ReduceL1 (e, last) p = Div (e, z) y = MatMul (p, v)",
        "MatMul/ReduceMax/Sub/Exp/ReduceL1/Div/MatMul",
    ),
    "one over the sum": (
        LOGITS + "h = ReduceMax (s, last) d = Sub (s, h) e = Exp (d) z = ReduceSum (e, last) i = Div (unit, z) p = Mul (e, i) "
        "y = MatMul (p, v)", "MatMul/ReduceMax/Sub/Exp/ReduceSum/Reciprocal/Mul/MatMul",
    ),
    "the logarithm of the sum": (
        LOGITS + "l = ReduceLogSumExp (s, last) d = Sub (s, l) p = Exp (d) y = MatMul (p, v)",
        "MatMul/ReduceLogSumExp/Sub/MatMul",
    ),
    "a logarithm taken back": (
        LOGITS + "l = LogSoftmax <axis = -1> (s) p = Exp (l) y = MatMul (p, v)", "MatMul/LogSoftmax/MatMul"
    ),
    "a power of two": (
        LOGITS + "g = Mul (s, log2e) h = ReduceMax (g, last) d = Sub (g, h) e = Pow (two, d) z = ReduceSum (e, last) "
        "p = Div (e, z) y = MatMul (p, v)", "MatMul/ReduceMax/Sub/Pow/ReduceSum/Div/MatMul",
    ),
    "zeros for exponentials": (
        LOGITS + "h = ReduceMax (s, last) d = Sub (s, h) e = Exp (d) x = Mul (e, m) z = ReduceSum (x, last) c = Add (z, tiny) "
        "p = Div (x, c) y = MatMul (p, v)", "MatMul/ReduceMax/Sub/Exp/ReduceSum/Div/MatMul",
    ),
    "a maximum that is never -inf": (
        LOGITS + "i = Where (b0, s, far) h = ReduceMax (i, last) n0 = Equal (h, far) g = Where (n0, nil, h) d = Sub (i, g) "
        "e = Exp (d) z = ReduceSum (e, last) c = Clip (z, tiny) p = Div (e, c) y = MatMul (p, v)",
        "MatMul/ReduceMax/Sub/Exp/ReduceSum/Div/MatMul",
    ),
    "a sink": (
        LOGITS + "u = Concat <axis = -1> (s, sink) p = Softmax <axis = -1> (u) w = Slice (p, zero, end, last) y = MatMul (w, v)",
        "MatMul/Softmax/MatMul",
    ),
    "scaled before a rotary embedding": (
        "x = Mul (q, scale) " + ROTATED + "s = MatMul (t, k) p = Softmax <axis = -1> (s) y = MatMul (p, v)",
        "MatMul/Softmax/MatMul",
    ),
    "scaled before an interleaved rotary embedding": (
        "x = Mul (q, scale) " + INTERLEAVED + "s = MatMul (t, k) p = Softmax <axis = -1> (s) y = MatMul (p, v)",
        "MatMul/Softmax/MatMul",
    ),
    "the scale in the softcap": (
        "a = MatMul (q, k) i = Mul (a, capped) h = Tanh (i) s = Mul (h, cap) p = Softmax <axis = -1> (s) y = MatMul (p, v)",
        "MatMul/Softmax/MatMul",
    ),
    "the root of a size": (
        ("a = MatMul (q, k) n1 = Shape (q) n2 = Gather (n1, at) n3 = Cast <to = 1> (n2) n4 = Sqrt (n3) s = Div (a, n4) "
        "p = Softmax <axis = -1> (s) y = MatMul (p, v)"), "MatMul/Softmax/MatMul",
    ),
    "constants as plain attributes": (
        "f = Constant <value_float = 0.35355338> () a = MatMul (q, k) s = Mul (a, f) p = Softmax <axis = -1> (s) y = MatMul (p, v)",
        "MatMul/Softmax/MatMul",
    ),
}  # fmt: skip
MORE = (
    f"{SCALE}, {HALVES}, float unit = {{1.0}}, float two = {{2.0}}, float log2e = {{{math.log2(math.e)}}}, "
    f"float tiny = {{1e-9}}, float far = {{-inf}}, float nil = {{0.0}}, int64[1] end = {{-1}}, int64 at = {{2}}, "
    f"float cap = {{30.0}}, float capped = {{{1 / math.sqrt(8) / 30}}}"
)
FED = ", float[n, m] m, bool[n, m] b0, float[b, n, 1] sink, float[n, 8] cos, float[n, 8] sin, float[n, 4] ch, float[n, 4] sh"


@pytest.mark.parametrize("form", FORMS)
def test_attention_written_otherwise_is_found_with_its_parts(form: str):
    nodes, operators = FORMS[form]
    found = attention(nodes, constants=MORE, inputs=FED)
    assert (found.query, found.key, found.value) == ("q", "k", "v")
    assert found.scale == pytest.approx(1 / math.sqrt(8), rel=2**-20)
    assert (found.form, found.head_size, found.softmax.shifted) == (operators, 8, True)
    assert found.softmax.axis == found.summed


@pytest.mark.parametrize("form", FORMS)
def test_attention_written_otherwise_is_quiet(form: str):
    assert static_findings(model(FORMS[form][0], constants=MORE, inputs=FED)) == []


def test_softmax_over_the_queries_is_told_however_the_keys_lie():
    turned = FORMS["keys first, softmax over the rows"][0].replace("axis = -2", "axis = -1")
    wrong = model(turned, constants=MORE, inputs=FED)
    assert [found.code for found in static_findings(wrong)] == ["OA421"]


def test_a_part_that_is_not_scaled_is_no_scale_of_the_whole():
    nodes = FORMS["scaled before a rotary embedding"][0].replace("Mul (x, cos)", "Mul (q, cos)")
    assert attention(nodes, constants=MORE, inputs=FED).scale == 1.0


def test_attention_spread_over_functions_is_found():
    functions = (
        '<domain: "own", opset_import: ["" : 21]> product (x, w) => (z) { z = MatMul (x, w) } '
        '<domain: "own", opset_import: ["" : 21]> soft <axis> (x) => (z) { z = Softmax <axis: int = @axis> (x) } '
    )
    nodes = "s = own.product (q, k) t = Mul (s, scale) p = own.soft <axis = 2> (t) y = own.product (p, v)"
    found = attention(nodes, constants=SCALE, functions=functions)
    assert (found.query, found.key, found.value, found.softmax.axis, found.head_size) == (
        "q",
        "k",
        "v",
        -1,
        8,
    )


def test_attention_in_a_branch_has_its_sizes():
    inside = "{{ {0}s = MatMul (q, k) {0}p = Softmax <axis = -1> ({0}s) {0}y = MatMul ({0}p, v) }}"
    branch = "{0} () => (float[b, n, 8] {0}y) " + inside
    nodes = f"y = If (c) <then_branch = {branch.format('a')}, else_branch = {branch.format('d')}>"
    found = find(model(nodes, inputs=", bool c")).attentions
    assert [(one.head_size, one.softmax.kind) for one in found] == [(8, 1), (8, 1)]


@pytest.mark.parametrize(
    ("mask", "hiding"),
    [
        ("i = Sub (unit, m) o = Mul (i, many) t = Sub (s, o)", -1e4),
        ("i = Sub (unit, m) o = Mul (i, few) b1 = Add (bias, o) t = Add (s, b1)", -1e4),
        ("o = Log (m) t = Add (s, o)", -math.inf),
        ("z = Shape (s) f = Expand (few, z) o = Trilu <upper = 1> (f, up) t = Add (s, o)", -1e4),
        ("o = Mul (s, half) t = Add (s, o)", None),
    ],
)
def test_number_of_a_mask_is_found_however_it_is_made(mask: str, hiding: float | None):
    constants = (
        "float unit = {1.0}, float many = {1e4}, float few = {-1e4}, int64 up = {1}, float half = {0.5}"
    )
    nodes = f"s = MatMul (q, k) {mask} p = Softmax <axis = -1> (t) y = MatMul (p, v)"
    masks = attention(nodes, inputs=", float[n, m] m, float[n, m] bias", constants=constants).masks
    assert [one.hiding for one in masks] == ([hiding] if hiding is not None else [])


def test_heads_that_are_mixed_are_an_attention_and_classes_are_none():
    mixed = (
        'a = Einsum <equation = "bhid,bhjd->bhij"> (q, k) s = Einsum <equation = "bhij,gh->bgij"> (a, w) '
        'p = Softmax <axis = -1> (s) y = Einsum <equation = "bhij,bhjd->bhid"> (p, v)'
    )
    text = (
        '<ir_version: 10, opset_import: ["" : 21]> g (float[b, 2, n, 8] q, float[b, 2, m, 8] k, float[b, 2, m, 8] v) '
        f"=> (float[b, 2, n, 8] y) <float[2, 2] w = {{1, 0, 0, 1}}> {{ {mixed} }}"
    )
    (found,) = find(onnx.parser.parse_model(text)).attentions
    assert (found.query, found.key, found.scale) == ("q", "k", None)
    classes = text.replace("bhij,gh->bgij", "bhij,jk->bhik")
    assert find(onnx.parser.parse_model(classes)).attentions == ()


@pytest.mark.parametrize(
    ("operator", "size"),
    [
        ("com.microsoft.GroupQueryAttention <num_heads = 2, kv_num_heads = 1, scale = 0.5> (q)", 2),
        ("com.microsoft.GroupQueryAttention <num_heads = 2, kv_num_heads = 1, scale = 0.5> (q, k, v)", 4),
        ("com.microsoft.MultiHeadAttention <num_heads = 2> (q, k, v)", 4),
    ],
)
def test_head_size_of_packed_queries_is_theirs_alone(operator: str, size: int):
    assert attention(f"y = {operator}").head_size == size


@pytest.mark.parametrize(
    ("operator", "place"),
    [
        ("MultiHeadAttention", 5),
        ("DecoderMaskedMultiHeadAttention", 4),
        ("GroupQueryAttention", 10),
        ("Attention", 5),
    ],
)
def test_bias_of_an_operator_is_a_mask(operator: str, place: int):
    inputs = ", ".join(["q", "k", "v", *[""] * (place - 3), "m"])
    (mask,) = attention(
        f"y = com.microsoft.{operator} <num_heads = 2> ({inputs})", inputs=", float[b, 2, n, m] m"
    ).masks
    assert mask.value == "m"


def test_a_mask_that_comes_from_the_layer_before_is_no_walk_through_all_layers():
    """Counted, not timed: looking at a mask costs the same in the last layer as in the first."""
    nodes, bias = [], "m"
    for layer in range(60):
        nodes.append(
            f"a{layer} = MatMul (q, k) t{layer} = Add (a{layer}, {bias}) p{layer} = Softmax <axis = -1> (t{layer}) "
            f"o{layer} = MatMul (p{layer}, v) r{layer} = ReduceMean (o{layer}) b{layer} = Add (m, r{layer})"
        )
        bias = f"b{layer}"
    found = find(model(" ".join(nodes), inputs=", float[n, m] m"))
    scope = found.scopes[0]
    assert len(found.attentions) == 60
    assert len(list(scope.ancestors(bias, most=NEAR))) == NEAR
    last = found.attentions[-1]
    assert scope.fed(last.masks[0].value) == ("m", "q", "k", "v")
    assert scope.depends(last.masks[0].value, last.query)


def test_a_damaged_permutation_is_no_axis():
    nodes = (
        "s = MatMul (q, k) t = Transpose <perm = [0, 7, 1]> (s) p = Softmax <axis = -1> (t) y = MatMul (p, v)"
    )
    assert attention(nodes).summed == -1
