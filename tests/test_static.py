"""Static rules: each is caught on a tiny graph and on a real export that has the fault, and quiet on what is right."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from torch import nn

from onnx_attest.export import export
from onnx_attest.export.artifact import Artifact
from onnx_attest.verify.findings import CODES
from onnx_attest.verify.static.known import known_of
from onnx_attest.verify.static.rules import static_findings

SCALED = "s = MatMul (q, k) t = Mul (s, half) "
END = "p = Softmax <axis = -1> (t) y = MatMul (p, v)"


def model(
    nodes: str, constants: str = "", *, opset: int = 21, more: str = "", half: bool = False
) -> onnx.ModelProto:
    """Return a graph of q (b, n, 4), k (b, 4, m), v (b, m, 4) and `more`, whose scale 1/sqrt(4) is `half`."""
    parsed = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["" : {opset}]>'
        f"g (float[b, n, 4] q, float[b, 4, m] k, float[b, m, 4] v{more}) => (float[b, n, 4] y) "
        f"<float half = {{0.5}}{', ' if constants else ''}{constants}> {{ {nodes} }}"
    )
    return _in_float16(parsed) if half else parsed


def _in_float16(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the graph in float16, but for the constant `big`; ONNX's text form has no such numbers."""
    for value in (*model.graph.input, *model.graph.output):
        if value.type.tensor_type.elem_type == onnx.TensorProto.FLOAT:
            value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT16
    for tensor in model.graph.initializer:
        if tensor.data_type == onnx.TensorProto.FLOAT and tensor.name != "big":
            array = onnx.numpy_helper.to_array(tensor).astype(np.float16)
            tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
    return model


def codes(of: onnx.ModelProto, **known: Any) -> list[str]:
    return [found.code for found in static_findings(of, **known)]


NAIVE = SCALED + "e = Exp (t) z = ReduceSum <keepdims = 1> (e, last) p = Div (e, z) y = MatMul (p, v)"
SHIFTED = (
    SCALED
    + "h = ReduceMax (t, last) d = Sub (t, h) e = Exp (d) z = ReduceSum (e, last) p = Div (e, z) y = MatMul (p, v)"
)
LAST = "int64[1] last = {-1}"
MASKED = SCALED[:-1].replace("t = ", "c = ") + " bias = Where (m, zero, far) t = Add (c, bias) " + END
MASK = ", bool[b, n, m] m"
GUARDED = MASKED.replace("y = MatMul (p, v)", "i = IsNaN (p) w = Where (i, zero, p) y = MatMul (w, v)")
CAP = "float cap = {30.0}, float zero = {0.0}, float far = {-inf}"
CAPPED = (
    SCALED.replace("t = ", "c = ")
    + "a = Div (c, cap) h = Tanh (a) l = Mul (h, cap) t = Where (m, l, far) "
    + END
)
CAPPED_LATE = (
    SCALED.replace("t = ", "c = ")
    + "x = Where (m, c, far) a = Div (x, cap) h = Tanh (a) t = Mul (h, cap) "
    + END
)
CODES_OF_LOGITS = (
    SCALED.replace("t = ", "c = ")
    + "a = QuantizeLinear (c, step, zero) t = DequantizeLinear (a, step, zero) "
    + END
)
OPERATOR = "y = Attention <{}> (q, k, v)"

# code: a graph that has the fault, and one that is the same but for it
PAIRS: dict[str, tuple[onnx.ModelProto, onnx.ModelProto]] = {
    "OA120": (
        model("y = Attention <scale = 0.5, q_num_heads = 1, kv_num_heads = 1> (q, k, v, m)", opset=23, more=", bool[m] m"),
        model("y = Attention <scale = 0.5, q_num_heads = 1, kv_num_heads = 1> (q, k, v, m)", opset=23, more=", bool[n, m] m"),
    ),
    "OA121": (
        model(SCALED + END + " r = Reshape (y, sizes)", "int64[3] sizes = {2, 7, 4}"),
        model(SCALED + END + " r = Reshape (y, sizes)", "int64[3] sizes = {0, -1, 4}"),
    ),
    "OA420": (model(NAIVE, LAST), model(SHIFTED, LAST)),
    "OA421": (model(SCALED + END.replace("-1", "-2")), model(SCALED + END)),
    "OA422": (model(SCALED + END.replace("<axis = -1> ", ""), opset=11), model(SCALED + END, opset=11)),
    "OA423": (
        model("a = Mul (q, half) t = MatMul (a, k) " + END, half=True),
        model("a = Mul (q, half) s = MatMul (a, k) t = Cast <to = 1> (s) w = Softmax <axis = -1> (t) "
              "p = Cast <to = 10> (w) y = MatMul (p, v)", half=True),
    ),
    "OA424": (
        model(SCALED + END, half=True), model("a = Mul (q, half) t = MatMul (a, k) " + END, half=True),
    ),
    "OA425": (model("t = MatMul (q, k) " + END), model(SCALED + END)),

    "OA427": (
        model(MASKED, "float zero = {0.0}, float far = {-3.4e38}", more=MASK),
        model(GUARDED, "float zero = {0.0}, float far = {-inf}", more=MASK),
    ),
    "OA428": (
        model(MASKED.replace("bias = ", "u = Cast <to = 10> (big) bias = ").replace("zero, far", "zero, u"),
              "float zero = {0.0}, float big = {-1e9}", more=MASK, half=True),
        model(MASKED.replace("bias = ", "u = Cast <to = 10> (big) bias = ").replace("zero, far", "zero, u"),
              "float zero = {0.0}, float big = {-6e4}", more=MASK, half=True),
    ),
    "OA429": (
        model(SCALED.replace("t = ", "c = ") + "h = Mul (o, far) t = Add (c, h) " + END, "float far = {-inf}", more=", float[n, m] o"),
        model(SCALED.replace("t = ", "c = ") + "h = Mul (o, far) t = Add (c, h) " + END, "float far = {-100.0}", more=", float[n, m] o"),
    ),
    "OA430": (model(CAPPED_LATE, CAP, more=MASK), model(CAPPED, CAP, more=MASK)),
    "OA431": (
        onnx.parser.parse_model(
            '<ir_version: 10, opset_import: ["" : 23]> g (float[b, 2, n, 4] q, float[b, 2, m, 4] k, float[b, 2, m, 4] v) '
            "=> (float[b, 2, n, 4] y) { y = Attention <is_causal = 1> (q, k, v) }"
        ),
        onnx.parser.parse_model(
            '<ir_version: 10, opset_import: ["" : 23]> g (float[b, 2, n, 4] q, float[b, 2, n, 4] k, float[b, 2, n, 4] v) '
            "=> (float[b, 2, n, 4] y) { y = Attention <is_causal = 1> (q, k, v) }"
        ),
    ),
    "OA432": (model(CODES_OF_LOGITS, "float step = {39.2}, uint8 zero = {100}"), model(CODES_OF_LOGITS, "float step = {0.1}, uint8 zero = {100}")),
}  # fmt: skip
PAIRS["OA426"] = (model((SCALED + END).replace("half)", "odd)"), "float odd = {0.3}"), model(SCALED + END))


@pytest.mark.parametrize("code", list(PAIRS))
def test_rule_catches_its_graph(code: str):
    assert code in codes(PAIRS[code][0])


@pytest.mark.parametrize("code", list(PAIRS))
def test_rule_is_quiet_on_the_same_graph_without_the_fault(code: str):
    assert code not in codes(PAIRS[code][1])


def test_every_static_code_has_a_pair_or_a_case_of_its_own():
    of_rules = {code for code in CODES if "OA420" <= code < "OA440" or code in ("OA120", "OA121")}
    assert of_rules == set(PAIRS)


@pytest.mark.parametrize(
    ("nodes", "constants", "said"),
    [
        ("t = MatMul (q, k) ", "", "has no scale"),
        ("a = Mul (q, half) s = MatMul (a, k) t = Mul (s, half) ", "", "applied twice"),
        ("s = MatMul (q, k) t = Mul (s, two) ", "float two = {2.0}", "instead of divided"),
        ("s = MatMul (q, k) t = Mul (s, of_heads) ", "float of_heads = {0.35355338}", "1/sqrt(8), which is the size of axis 1"),
    ],
)  # fmt: skip
def test_usual_mistakes_of_a_scale_are_told_apart(nodes: str, constants: str, said: str):
    wide = model(nodes + END, constants)
    for value in wide.graph.input:
        if value.name == "q":
            value.type.tensor_type.shape.dim[1].dim_value = 8
    (found,) = static_findings(wide)
    assert (found.code, said in found.message) == ("OA425", True), found.message


@pytest.mark.parametrize(
    ("policy", "codes_"), [("mean", []), ("never", []), ("zero", ["OA427"]), ("unknown", ["OA427"])]
)
def test_a_declared_policy_for_empty_rows_is_no_fault(policy: str, codes_: list[str]):
    assert codes(PAIRS["OA427"][0], empty_rows=policy) == codes_


def test_a_guard_against_nan_does_not_help_against_a_finite_number():
    finite = model(GUARDED, "float zero = {0.0}, float far = {-3.4e38}", more=MASK)
    (found,) = static_findings(finite)
    assert "the mean of the values" in found.message


def test_a_mask_that_nobody_feeds_leaves_no_row_empty():
    fixed = MASKED.replace("Where (m,", "Where (tri,").replace(
        "bias = ", "tri = Trilu <upper = 0> (ones) bias = "
    )
    constants = f"float zero = {{0.0}}, float far = {{-inf}}, bool[4, 4] ones = {{{', '.join(['1'] * 16)}}}"
    assert "OA427" not in codes(model(fixed, constants))


def test_a_traced_size_is_told_from_others_by_the_manifest():
    one = model(SCALED + END + " r = Reshape (y, sizes)", "int64[3] sizes = {-1, 7, 4}")
    assert codes(one) == []
    assert codes(one, traced={"n": 7}) == ["OA121"]
    assert codes(one, traced={"n": 9}) == []


def test_a_slice_at_a_traced_size_is_found():
    nodes = SCALED + END + " r = Slice (y, first, last, axes)"
    cut = model(nodes, "int64[1] first = {0}, int64[1] last = {7}, int64[1] axes = {1}")
    assert codes(cut, traced={"n": 7}) == ["OA121"]
    assert codes(cut, traced={"n": 9}) == []


# --- right files that look like faults --------------------------------------------------------------------------

NORMS = (
    "qs = Mul (q, q) qz = ReduceSum (qs, last) ql = Sqrt (qz) qu = Div (q, ql) "
    "ks = Mul (k, k) kz = ReduceSum (ks, row) kl = Sqrt (kz) ku = Div (k, kl) s = MatMul (qu, ku) t = Mul (s, ten) "
)
PARTS = (
    "q1 = Slice (q, none, three, last) q2 = Slice (q, three, four, last) k1 = Slice (k, none, three, row) "
    "k2 = Slice (k, three, four, row) s1 = MatMul (q1, k1) s2 = MatMul (q2, k2) s = Add (s1, s2) t = Mul (s, half) "
)
CUTS = (
    "int64[1] none = {0}, int64[1] three = {3}, int64[1] four = {4}, int64[1] last = {-1}, int64[1] row = {1}"
)
BIASED = "s = MatMul (q, k) c = Mul (s, half) w = Mul (far, slope) x = Add (c, w) a = Div (x, cap) h = Tanh (a) t = Mul (h, cap) "
RIGHT: dict[str, onnx.ModelProto] = {
    "exponentials of clipped logits": model(
        NAIVE.replace("Exp (t)", "Exp (l)").replace("e = ", "l = Clip (t, low, high) e = "),
        f"{LAST}, float low = {{-50.0}}, float high = {{50.0}}",
    ),
    "exponentials of capped logits": model(
        NAIVE.replace("Exp (t)", "Exp (l)").replace("e = ", "d = Div (t, cap) h = Tanh (d) l = Mul (h, cap) e = "),
        f"{LAST}, float cap = {{30.0}}",
    ),
    "vectors of length one with a temperature": model(NORMS + END, f"{CUTS}, float ten = {{10.0}}"),
    "a head in two parts": model(PARTS + END, CUTS),
    "a bias by positions before the softcap": model(
        BIASED + END, "float cap = {30.0}, float slope = {-0.5}", more=", float[n, m] far"
    ),
    "an old softmax with nothing behind its axis": onnx.parser.parse_model(
        '<ir_version: 7, opset_import: ["" : 11]> g (float[b, 4, 1, 1] x) => (float[b, 4, 1, 1] y) { y = Softmax (x) }'
    ),
    "the last rows of a triangle": model(
        SCALED[:-1].replace("t = ", "c = ")
        + " all = Trilu <upper = 0> (ones) rows = Slice (all, from, to, first) t = Where (rows, c, far) "
        + END,
        "float far = {-inf}, int64[1] from = {1}, int64[1] to = {4}, int64[1] first = {0}, bool[4, 4] ones = {"
        + ", ".join(["1"] * 16) + "}",
    ),
    "an infinite number that a clamp of the sum keeps from NaN": model(
        SCALED[:-1].replace("t = ", "c = ")
        + " t = Where (m, c, far) h = ReduceMax (t, last) g = Max (h, low) d = Sub (t, g) e = Exp (d) z = ReduceSum (e, last) "
        "w = Max (z, tiny) p = Div (e, w) y = MatMul (p, v)",
        f"{LAST}, float far = {{-inf}}, float low = {{-1e4}}, float tiny = {{1e-9}}", more=MASK,
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", RIGHT)
def test_rules_are_quiet_on_what_is_right(what: str):
    assert [item.message for item in static_findings(RIGHT[what])] == []


@pytest.mark.parametrize(
    ("what", "old", "new", "told"),
    [
        ("exponentials of clipped logits", 50.0, 88.0, {"OA420"}),
        ("a head in two parts", 0.5, 0.25, {"OA425"}),
        ("a bias by positions before the softcap", -0.5, -1e9, {"OA427", "OA430"}),
    ],
)
def test_the_same_are_told_where_a_number_is_wrong(what: str, old: float, new: float, told: set[str]):
    wrong = onnx.ModelProto()
    wrong.CopyFrom(RIGHT[what])
    for tensor in wrong.graph.initializer:
        array = onnx.numpy_helper.to_array(tensor)
        if array.size == 1 and array.dtype.kind == "f" and float(array.reshape(-1)[0]) == old:
            tensor.CopyFrom(onnx.numpy_helper.from_array(np.full_like(array, new), tensor.name))
    assert set(codes(wrong)) == told


@pytest.mark.parametrize(
    ("shape", "told"), [("-1, 0, 2, 2", False), ("0, -1, 2, 2", False), ("-1, 7, 2, 2", True)]
)
def test_groups_of_a_head_are_no_traced_size(shape: str, told: bool):
    grouped = model(SCALED + END + " r = Reshape (y, sizes)", f"int64[4] sizes = {{{shape}}}")
    assert codes(grouped, traced={"b": 2, "n": 7}) == (["OA121"] if told else [])


@pytest.mark.parametrize(("number", "told"), [(65519.0, False), (65520.0, True)])
def test_a_number_fits_a_format_that_it_rounds_into(number: float, told: bool):
    cast = model("u = Cast <to = 10> (big) w = Cast <to = 1> (u) y = Add (q, w)", f"float big = {{{number}}}")
    assert ("OA428" in codes(cast)) == told


# --- real exports that have the fault ---------------------------------------------------------------------------


class Written(nn.Module):
    """An attention over tokens that is written by somebody."""

    def __init__(self, attend: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.q, self.k, self.v = (nn.Linear(15, 15) for _ in range(3))
        self.attend = attend

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return self.attend(self.q(x), self.k(x), self.v(x), mask)


def naive(q, k, v, mask):
    e = torch.exp(q @ k.mT / math.sqrt(15))
    return e / e.sum(-1, keepdim=True) @ v


def unscaled(q, k, v, mask):
    return torch.softmax(q @ k.mT, -1) @ v


def scaled_twice(q, k, v, mask):
    return torch.softmax((q / math.sqrt(15)) @ k.mT / math.sqrt(15), -1) @ v


def over_queries(q, k, v, mask):
    return torch.softmax(q @ k.mT / math.sqrt(15), -2) @ v


def finite_mask(q, k, v, mask):
    return torch.softmax((q @ k.mT / math.sqrt(15)).masked_fill(~mask, -1e9), -1) @ v


def infinite_mask(q, k, v, mask):
    return torch.softmax((q @ k.mT / math.sqrt(15)).masked_fill(~mask, -torch.inf), -1) @ v


def zero_times_infinity(q, k, v, mask):
    return (
        torch.softmax(q @ k.mT / math.sqrt(15) + (1.0 - mask.to(q.dtype)) * -torch.inf, -1).nan_to_num() @ v
    )


def masked_before_the_cap(q, k, v, mask):
    logits = (q @ k.mT / math.sqrt(15)).masked_fill(~mask, -torch.inf)
    return torch.softmax(5 * torch.tanh(logits / 5), -1) @ v


def in_half(q, k, v, mask):
    q, k, v = q.half(), k.half(), v.half()
    return (torch.softmax(q @ k.mT / math.sqrt(15), -1) @ v).float()


def right(q, k, v, mask):
    return torch.softmax((q @ k.mT / math.sqrt(15)).masked_fill(~mask, -torch.inf), -1).nan_to_num(0.0) @ v


EXPORTS = {
    naive: {"OA420"},
    unscaled: {"OA425"},
    scaled_twice: {"OA425"},
    over_queries: {"OA421"},
    finite_mask: {"OA427"},
    infinite_mask: {"OA427"},
    zero_times_infinity: {"OA429"},
    masked_before_the_cap: {"OA430", "OA427"},
    in_half: {"OA423", "OA424"},
    right: set(),
}


@pytest.mark.parametrize("attend", EXPORTS, ids=lambda attend: attend.__name__)
def test_fault_of_a_module_is_found_in_its_export(attend, tmp_path):
    args = {"x": torch.randn(3, 7, 15), "mask": torch.ones(3, 7, 7, dtype=torch.bool)}
    dynamic = {"x": {0: "batch", 1: "seq"}, "mask": {0: "batch", 1: "seq", 2: "seq"}}
    artifact = export(Written(attend).eval(), args, path=tmp_path / "written.onnx", dynamic=dynamic)
    found = static_findings(onnx.load(artifact.path), **known_of(artifact))
    assert {item.code for item in found} == EXPORTS[attend], [item.message for item in found]


def test_a_number_that_does_not_fit_half_is_found_in_an_export_in_half(tmp_path):
    class Masked(nn.Module):
        def forward(self, q, k, v, mask):
            hidden = torch.where(mask, torch.zeros(()), torch.full((), -1e9)).to(q.dtype)
            return torch.softmax((q * 0.5) @ k.mT + hidden, -1) @ v

    args = (*(torch.randn(2, 5, 4).half() for _ in range(3)), torch.ones(2, 5, 5, dtype=torch.bool))
    path = tmp_path / "half.onnx"
    torch.onnx.export(Masked().eval(), args, path, dynamo=True, verbose=False)
    found = {item.code: item.message for item in static_findings(onnx.load(path))}
    assert set(found) == {"OA423", "OA427", "OA428"}
    assert "hides keys by -1e+09, which is infinite in float16" in found["OA428"]
    assert "NaN" in found["OA427"]


def test_a_mask_of_one_axis_is_found_in_an_export(tmp_path):
    class Attend(nn.Module):
        def forward(self, q, k, v, mask):
            return torch.onnx.ops.attention(q, k, v, mask)[0]

    heads = torch.randn(2, 3, 5, 8)
    path = tmp_path / "attend.onnx"
    args = (heads, heads, heads, torch.zeros(5))
    torch.onnx.export(Attend(), args, path, dynamo=True, opset_version=23, verbose=False)
    assert codes(onnx.load(path)) == ["OA120"]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("opset", [9, 11, 12])
@pytest.mark.parametrize("axis", [1, -1])
def test_torch_writes_no_softmax_of_several_axes_in_any_old_opset(tmp_path, opset, axis):
    """It moves the axis to the end: OA422 has no export of torch's that has the fault."""

    class Softmax(nn.Module):
        def forward(self, x):
            return torch.softmax(x, axis)

    path = tmp_path / "old.onnx"
    torch.onnx.export(Softmax(), (torch.randn(2, 3, 4),), path, dynamo=False, opset_version=opset)
    assert codes(onnx.load(path)) == []


# --- the catalogue ----------------------------------------------------------------------------------------------

TRUE_OF_THE_CHAPTER = {
    "sdpa-naive": {"OA420"},
    "sdpa-unscaled": {"OA425"},
    # onnxscript#2654: torch gives 0, the decomposed graph the mean of the values.
    "self-attention-decomposed-18": {"OA427"},
    "mha-decomposed-18": {"OA427"},
}


def test_the_chapters_files_are_quiet_but_for_what_is_known_of_them(exported: dict[str, Artifact]):
    for stem, artifact in exported.items():
        found = {item.code for item in static_findings(onnx.load(artifact.path), **known_of(artifact))}
        wanted = next(
            (codes_ for name, codes_ in TRUE_OF_THE_CHAPTER.items() if stem.startswith(name)), set()
        )
        assert found == wanted, stem


# --- the command ------------------------------------------------------------------------------------------------


def test_command_shows_each_attention_and_what_is_wrong(command, exported):
    answer = command("check", exported["sdpa-naive-decomposed-18"].path, "--attention")
    assert (answer.code, answer.err) == (0, "")
    assert "1 attention, 0 other softmaxes" in answer.out
    assert "| MatMul/Exp/ReduceSum/Div/MatMul |" in answer.out
    assert "OA420 warning: node_div_1 is Exp/ReduceSum/Div without the maximum subtracted" in answer.out


def test_command_fails_on_an_error_and_says_so_as_json(command, tmp_path):
    onnx.save(PAIRS["OA421"][0], tmp_path / "wrong.onnx")
    answer = command("check", tmp_path / "wrong.onnx", "--json")
    said = json.loads(answer.out)
    assert (answer.code, [item["code"] for item in said["findings"]]) == (1, ["OA421"])
    assert said["attentions"][0]["axis"] == "-2"
    assert (said["verdict"], said["exit_code"], said["cells"]) == ("failed", 1, [])
    assert set(said["findings"][0]) == {"code", "severity", "blame", "node", "message", "next_step"}


def test_command_says_where_a_provider_puts_the_nodes(command, tmp_path):
    onnx.save(PAIRS["OA421"][1], tmp_path / "right.onnx")
    assert "No rule finds anything." in command("check", tmp_path / "right.onnx", "--provider", "ort-cpu").out


def test_file_that_is_none_is_refused_in_one_line(command, tmp_path):
    path = tmp_path / "cut.onnx"
    path.write_bytes(PAIRS["OA421"][1].SerializeToString()[:-7])
    command("check", path).assert_refused("cut.onnx", "not a complete ONNX file")
    command("check", tmp_path / "nothing.onnx").assert_refused("nothing.onnx", "cannot read")
    path.write_bytes(b"")
    command("check", path).assert_refused("cut.onnx", "is empty")
    broken = onnx.ModelProto()
    broken.CopyFrom(PAIRS["OA421"][1])
    broken.graph.node[0].input[0] = "nobody"
    path.write_bytes(broken.SerializeToString())
    command("check", path).assert_refused("cut.onnx", "not valid ONNX")


def test_check_imports_neither_onnx_nor_a_runtime(tmp_path):
    onnx.save(PAIRS["OA421"][1], tmp_path / "right.onnx")
    program = (
        "import sys; from pathlib import Path; from onnx_attest.verify.static.check import check_file; "
        f"check_file(Path({str(tmp_path / 'right.onnx')!r})); "
        "print([name for name in ('onnx', 'ml_dtypes', 'torch', 'onnxruntime') if name in sys.modules])"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert said.strip() == "[]"


def test_onnx_still_imports_after_its_parts_were_read_alone(tmp_path: Path):
    program = (
        "from onnx_attest.verify.finder.messages import part; M = part('onnx_ml_pb2').ModelProto; "
        "part('onnx_cpp2py_export'); import onnx; assert onnx.ModelProto is M; onnx.checker.check_model(onnx.parser.parse_model("
        "'<ir_version: 10, opset_import: [\"\" : 18]> g (float[n] x) => (float[n] y) { y = Exp (x) }')); print('fine')"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert said.strip() == "fine"
