"""Small files that are right, from which all hostile ones are made: each has other parts of ONNX in it."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
from onnx import TensorProto, helper, numpy_helper

_HEADER = '<ir_version: 10, opset_import: ["": {opset}{more}]>'

_PLAIN = """
attention (float[batch, n, 4] x) => (float[batch, n, 4] y)
<float[4, 4] w = {0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6}, float scale = {0.5}>
{
  q = MatMul (x, w)
  k = Transpose <perm = [0, 2, 1]> (q)
  s = MatMul (q, k)
  t = Mul (s, scale)
  p = Softmax <axis = -1> (t)
  y = MatMul (p, x)
}
"""
_MASKED = """
masked (float[batch, n, 4] x, bool[batch, n, n] mask) => (float[batch, n, 4] y) <float hidden = {-inf}>
{
  k = Transpose <perm = [0, 2, 1]> (x)
  s = MatMul (x, k)
  t = Where (mask, s, hidden)
  p = Softmax <axis = -1> (t)
  y = MatMul (p, x)
}
"""
_OPERATOR = """
operator (float[batch, n, 8] q, float[batch, m, 8] k, float[batch, m, 8] v) => (float[batch, n, 8] y)
{ y = Attention <q_num_heads = 2, kv_num_heads = 2, is_causal = 1> (q, k, v) }
"""
_CONTROL = """
control (float[n, 4] x, bool more) => (float[n, 4] y, float[n, 4] z) <int64 three = {3}, bool go = {1}>
{
  y = If (more) <
    then_branch = one () => (float[n, 4] a) { a = Add (x, x) },
    else_branch = two () => (float[n, 4] b) { b = Mul (x, x) }
  >
  z = Loop (three, go, x) <body = body (int64 i, bool before, float[n, 4] c) => (bool after, float[n, 4] d) {
    after = Identity (before)
    d = Add (c, x)
  }>
}
"""
_SHAPES = """
shapes (int64[batch, n] ids, float[batch, n] x) => (float[batch, n, 2] y, float[m] z)
<float[5, 2] table = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, int64[1] all = {-1}, int64[1] zero = {0}, int64[1] one = {1}>
{
  e = Gather <axis = 0> (table, ids)
  u = Unsqueeze (x, all)
  y = Mul (e, u)
  s = Shape (x)
  n = Slice (s, zero, one)
  c = ConstantOfShape (n)
  f = Reshape (x, all)
  z = Concat <axis = 0> (c, f)
}
"""
_FUNCTIONS = """
<ir_version: 10, opset_import: ["": 18, "own": 1]>
called (float[n, 4] x) => (float[n, 4] y)
{
  a = own.twice (x)
  y = own.scaled <by = 2.0> (a)
}
<domain: "own", opset_import: ["": 18]>
twice (a) => (b) { b = Add (a, a) }
<domain: "own", opset_import: ["": 18, "own": 1]>
scaled <by> (a) => (b)
{
  s = Constant <value_float: float = @by> ()
  c = own.twice (a)
  b = Mul (c, s)
}
"""
_CODED = """
coded (float[n, 4] x) => (float[n, 4] y)
<float s = {0.1}, uint8 z = {128}, int8[4, 4] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}, int8 o = {0}>
{
  q = QuantizeLinear (x, s, z)
  d = DequantizeLinear (q, s, z)
  v = DequantizeLinear (w, s, o)
  y = MatMul (d, v)
}
"""
_CONTRIB = """
contrib (float[batch, n, 8] q, float[batch, n, 8] k, float[batch, n, 8] v) => (float[batch, n, 8] y)
{ y = com.microsoft.MultiHeadAttention <num_heads = 2> (q, k, v) }
"""
_HALF = """
half (float16[batch, n, 4] x) => (float16[batch, n, 4] y)
{
  k = Transpose <perm = [0, 2, 1]> (x)
  s = MatMul (x, k)
  p = Softmax <axis = -1> (s)
  y = MatMul (p, x)
}
"""


def _parsed(text: str, opset: int = 18, more: str = "") -> onnx.ModelProto:
    header = "" if text.lstrip().startswith("<ir") else _HEADER.format(opset=opset, more=more)
    return onnx.parser.parse_model(header + text)


def _layered(layers: int) -> onnx.ModelProto:
    """Return a file as exporters write it: raw data, value_info, metadata."""
    weights, nodes, name = [], [], "x"
    for layer in range(layers):
        array = np.random.default_rng(layer).standard_normal((4, 4)).astype(np.float32)
        weights.append(numpy_helper.from_array(array, f"w{layer}"))
        nodes.append(helper.make_node("MatMul", [name, f"w{layer}"], [f"m{layer}"], f"/layer{layer}/MatMul"))
        nodes.append(helper.make_node("Relu", [f"m{layer}"], [f"r{layer}"], f"/layer{layer}/Relu"))
        name = f"r{layer}"
    axes = ["batch", 4]
    graph = helper.make_graph(
        nodes,
        "layers",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, axes)],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, axes)],
        weights,
        value_info=[helper.make_tensor_value_info("m0", TensorProto.FLOAT, axes)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    model.metadata_props.add(key="made by", value="a test")
    return model


def seeds() -> dict[str, onnx.ModelProto]:
    """Return the files by name."""
    return {
        "plain": _parsed(_PLAIN),
        "masked": _parsed(_MASKED),
        "operator": _parsed(_OPERATOR, opset=23),
        "control": _parsed(_CONTROL),
        "shapes": _parsed(_SHAPES),
        "functions": _parsed(_FUNCTIONS),
        "coded": _parsed(_CODED, opset=21),
        "contrib": _parsed(_CONTRIB, more=', "com.microsoft": 1'),
        "half": _parsed(_HALF),
        "layers": _layered(3),
    }
