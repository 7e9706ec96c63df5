"""Work of a graph: against numbers counted by hand."""

from __future__ import annotations

from pathlib import Path

import onnx.parser
import pytest

from onnx_attest.errors import UsageError
from onnx_attest.verify.flops import Work, count

B, H, N, M, D, E = 2, 4, 6, 10, 8, 5


def counted(tmp_path: Path, text: str, shapes: dict[str, tuple[int, ...]]) -> Work:
    head = '<ir_version: 10, opset_import: ["": 23]>\n'
    path = tmp_path / "model.onnx"
    path.write_bytes(onnx.parser.parse_model(head + text).SerializeToString())
    return count(path, shapes)


WRITTEN_OUT = """
f (float[b, h, n, 8] q, float[b, h, m, 8] k, float[b, h, m, 5] v) => (float[b, h, n, 5] y) {
    t = Transpose <perm = [0, 1, 3, 2]> (k)
    s = MatMul (q, t)
    p = Softmax (s)
    y = MatMul (p, v)
}
"""


def test_an_attention_written_out(tmp_path: Path) -> None:
    found = counted(tmp_path, WRITTEN_OUT, {"q": (B, H, N, D), "k": (B, H, M, D), "v": (B, H, M, E)})
    assert found.flops == 2 * B * H * N * M * (D + E)
    inputs, output = B * H * (N * D + M * D + M * E), B * H * N * E
    assert found.bytes_least == 4 * (inputs + output)
    scores, k = B * H * N * M, B * H * M * D
    by_node = 2 * k + (B * H * N * D + k + scores) + 2 * scores + (scores + B * H * M * E + output)
    assert found.bytes_by_node == 4 * by_node
    assert found.not_counted == ()


@pytest.mark.parametrize(
    ("text", "shapes", "flops"),
    [
        pytest.param(
            "f (float[b, h, n, 8] q, float[b, h, m, 8] k, float[b, h, m, 5] v) => (float[b, h, n, 5] y) { y = Attention (q, k, v) }",
            {"q": (B, H, N, D), "k": (B, H, M, D), "v": (B, H, M, E)},
            2 * B * H * N * M * (D + E),
            id="Attention by head",
        ),
        pytest.param(
            "f (float[b, n, 32] q, float[b, m, 16] k, float[b, m, 10] v) => (float[b, n, y1] y)"
            " { y = Attention <q_num_heads = 4, kv_num_heads = 2> (q, k, v) }",
            {"q": (B, N, 32), "k": (B, M, 16), "v": (B, M, 10)},
            2 * B * 4 * N * M * (8 + 5),
            id="Attention in groups",
        ),
        pytest.param(
            "f (float[n, 8] x, float[5, 8] w, float[5] c) => (float[n, 5] y) { y = Gemm <transB = 1> (x, w, c) }",
            {"x": (N, D), "w": (E, D), "c": (E,)},
            2 * N * D * E,
            id="Gemm",
        ),
        pytest.param(
            'f (float[b, n, 8] x, float[b, m, 8] y) => (float[b, n, m] z) { z = Einsum <equation = "bnd,bmd->bnm"> (x, y) }',
            {"x": (B, N, D), "y": (B, M, D)},
            2 * B * N * M * D,
            id="Einsum",
        ),
        pytest.param(
            "f (float[1, 3, 8, 8] x, float[4, 3, 3, 3] w) => (float[1, 4, 6, 6] y) { y = Conv (x, w) }",
            {"x": (1, 3, 8, 8), "w": (4, 3, 3, 3)},
            2 * 4 * 6 * 6 * 3 * 3 * 3,
            id="Conv",
        ),
        pytest.param(
            "f (float[n, 8] x) => (float[n, 8] y) { y = Relu (x) }", {"x": (N, D)}, 0, id="no product"
        ),
        pytest.param(
            "f (float[1, n, 8] x, float[b, 8, 5] w) => (float[b, n, 5] y) { y = MatMul (x, w) }",
            {"x": (1, N, D), "w": (B, D, E)},
            2 * B * N * D * E,
            id="batch broadcast",
        ),
    ],
)
def test_products_by_hand(tmp_path: Path, text: str, shapes: dict[str, tuple[int, ...]], flops: int) -> None:
    assert counted(tmp_path, text, shapes).flops == flops


def test_what_is_not_counted_is_named(tmp_path: Path) -> None:
    text = """
f (float[b, n, 8] x, float[1, 20, 8] w, float[1, 20, 5] r) => (float[n, 1, b, 5] y) { y = LSTM <hidden_size = 5> (x, w, r) }
"""
    found = counted(tmp_path, text, {"x": (B, N, D), "w": (1, 20, 8), "r": (1, 20, 5)})
    assert found.not_counted == ("LSTM",)


def test_an_unknown_size_is_no_zero(tmp_path: Path) -> None:
    text = """
f (float[n, 8] x, int64[k] i, float[m, 5] w) => (float[n, 5] y) { s = Reshape (x, i) y = MatMul (s, w) }
"""
    found = counted(tmp_path, text, {"x": (N, D), "i": (2,), "w": (D, E)})
    assert found.flops is None
    assert found.bytes_by_node is None


def test_a_file_that_is_none(tmp_path: Path) -> None:
    path = tmp_path / "broken.onnx"
    path.write_bytes(b"\x08")
    with pytest.raises(UsageError, match=r"cannot read broken\.onnx"):
        count(path, {})
