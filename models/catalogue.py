"""The built-in entries, and those that other packages register under `onnx_attest.models`."""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import TYPE_CHECKING

from onnx_attest.errors import UsageError
from onnx_attest.models.contract import Contract, MaskKind, TensorSpec
from onnx_attest.models.entry import Entry

if TYPE_CHECKING:
    from torch import nn

# All sizes are distinct, and none is a power of two: a swapped axis or a scale that is exact by luck shows.
D_K, D_V = 20, 12
D_MODEL, HEADS = 45, 5
TRACED = {"batch": 2, "seq_len": 7}

MASKS: tuple[MaskKind, ...] = ("all", "causal", "padding", "holes", "empty-row")

SCALED_DOT_PRODUCT = f"""
<ir_version: 10, opset_import: ["": 18]>
scaled_dot_product_attention
  (float[batch, seq_len, {D_K}] Q, float[batch, seq_len, {D_K}] K, float[batch, seq_len, {D_V}] V,
   bool[batch, seq_len, seq_len] mask)
  => (float[batch, seq_len, {D_V}] output, float[batch, seq_len, seq_len] weights)
  <double scale = {{{D_K**-0.5!r}}}, float minus_infinity = {{-inf}}>
{{
  keys = Transpose <perm = [0, 2, 1]> (K)
  products = MatMul (Q, keys)
  scores = Mul (products, scale)
  masked = Where (mask, scores, minus_infinity)
  weights = Softmax <axis = -1> (masked)
  output = MatMul (weights, V)
}}
"""
"""The chapter's formula as a graph: what the module and both counter-examples are held against."""


def _scaled_dot_product_contract() -> Contract:
    return Contract(
        inputs=(
            TensorSpec("Q", ("batch", "seq_len", D_K), role="query"),
            TensorSpec("K", ("batch", "seq_len", D_K), role="key"),
            TensorSpec("V", ("batch", "seq_len", D_V), role="value"),
            TensorSpec("mask", ("batch", "seq_len", "seq_len"), "bool", "mask", MASKS),
        ),
        outputs=(
            TensorSpec("output", ("batch", "seq_len", D_V), role="output"),
            TensorSpec("weights", ("batch", "seq_len", "seq_len"), role="weights"),
        ),
        traced=TRACED,
        empty_rows="nan",
        specification=SCALED_DOT_PRODUCT,
    )


def _tokens_contract(d_model: int, d_out: int, masks: tuple[MaskKind, ...]) -> Contract:
    tokens = TensorSpec("X", ("batch", "seq_len", d_model), role="tokens")
    mask = TensorSpec("mask", ("batch", "seq_len", "seq_len"), "bool", "mask", masks)
    return Contract(
        inputs=(tokens, mask) if masks else (tokens,),
        outputs=(TensorSpec("output", ("batch", "seq_len", d_out), role="output"),),
        traced=TRACED,
        empty_rows="zero" if "empty-row" in masks else "never",
    )


def _scaled_dot_product() -> nn.Module:
    from onnx_attest.models.scaled_dot_product import ScaledDotProductAttention

    return ScaledDotProductAttention(D_K).eval()


def _naive() -> nn.Module:
    from onnx_attest.models.scaled_dot_product import NaiveSoftmaxAttention

    return NaiveSoftmaxAttention(D_K).eval()


def _unscaled() -> nn.Module:
    from onnx_attest.models.scaled_dot_product import UnscaledAttention

    return UnscaledAttention(D_K).eval()


def _self_attention() -> nn.Module:
    from onnx_attest.models.scaled_dot_product import SelfAttention

    return SelfAttention(D_MODEL, D_K, D_V).eval()


def _multi_head() -> nn.Module:
    from onnx_attest.models.multi_head import MultiHeadAttention

    return MultiHeadAttention(D_MODEL, HEADS).eval()


def _causal() -> nn.Module:
    from onnx_attest.models.multi_head import CausalSelfAttention

    return CausalSelfAttention(D_MODEL, HEADS).eval()


CATALOGUE: tuple[Entry, ...] = (
    Entry(
        "sdpa",
        "scaled dot-product attention as the chapter writes it; returns output and weights",
        _scaled_dot_product_contract(),
        _scaled_dot_product,
        variants=("decomposed",),
    ),
    Entry(
        "self-attention",
        "Q, K and V from one X by three linear maps, optional mask",
        _tokens_contract(D_MODEL, D_V, MASKS),
        _self_attention,
    ),
    Entry(
        "mha",
        f"multi-head self-attention, {HEADS} heads, optional mask",
        _tokens_contract(D_MODEL, D_MODEL, MASKS),
        _multi_head,
    ),
    Entry(
        "causal",
        "multi-head self-attention whose causal mask is built from the dynamic length",
        _tokens_contract(D_MODEL, D_MODEL, ()),
        _causal,
    ),
    Entry(
        "sdpa-naive",
        "counter-example: softmax without subtracting the row's maximum",
        _scaled_dot_product_contract(),
        _naive,
        variants=("decomposed",),
    ),
    Entry(
        "sdpa-unscaled",
        "counter-example: no division by sqrt(d_k)",
        _scaled_dot_product_contract(),
        _unscaled,
        variants=("decomposed",),
    ),
)

ENTRY_POINTS = "onnx_attest.models"


def catalogue() -> dict[str, Entry]:
    """Return all entries by name: the built-in ones, then those that installed packages register.

    Raises:
        UsageError: an entry point that cannot be loaded, or a name that is taken.
    """
    entries = {entry.name: entry for entry in CATALOGUE}
    for point in entry_points(group=ENTRY_POINTS):
        entry = _load(point)
        if entry.name in entries:
            raise UsageError(f"two models are called {entry.name!r}; rename the one of {point.value}")
        entries[entry.name] = entry
    return entries


def _load(point: object) -> Entry:
    from importlib.metadata import EntryPoint

    assert isinstance(point, EntryPoint)
    try:
        entry = point.load()
    except Exception as error:
        raise UsageError(
            f"the model {point.value} cannot be loaded: {type(error).__name__}: {error}"
        ) from error
    if not isinstance(entry, Entry):
        raise UsageError(f"{point.value} is {type(entry).__name__}, not an onnx_attest.models.Entry")
    return entry
