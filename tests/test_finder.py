"""The finder: each way to write a softmax and an attention is found, with its parts, and what is neither is not."""

from __future__ import annotations

import math

import onnx
import pytest

from onnx_attest.verify.finder.find import find
from onnx_attest.verify.finder.found import Attention, Softmax


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


def test_softmax_in_a_function_is_found():
    function = '<domain: "own", opset_import: ["" : 21]> f (x) => (z) { z = Softmax <axis = -1> (x) }'
    assert softmax("y = own.f (q)", functions=function).weights == "z"


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
