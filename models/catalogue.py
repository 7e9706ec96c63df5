"""The built-in entries, and those that other packages register under `onnx_attest.models`."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

from onnx_attest.errors import UsageError
from onnx_attest.models.contract import Causal, Contract, EmptyRows, MaskKind, TensorSpec
from onnx_attest.models.entry import Entry

if TYPE_CHECKING:
    from torch import nn

# All sizes are distinct, and none is a power of two: a swapped axis or a scale that is exact by luck shows.
D_K, D_V = 20, 12
D_MODEL, HEADS = 45, 5
D_MEMORY, D_WIDE, D_EVEN, D_HIDDEN = 21, 110, 70, 98
WINDOW, BLOCKS = 4, 3
TRACED = {"batch": 2, "seq_len": 7}

MASKS: tuple[MaskKind, ...] = ("all", "causal", "padding", "left-padding", "holes", "empty-row")

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


def _build(module: str, name: str, *args: Any, **options: Any) -> Callable[[], nn.Module]:
    """Return a function that imports a module of this package, and with it torch, only when it is called."""

    def build() -> nn.Module:
        made: nn.Module = getattr(importlib.import_module(f"onnx_attest.models.{module}"), name)(
            *args, **options
        )
        return made.eval()

    return build


def _mask(*axes: str | int, kinds: tuple[MaskKind, ...] = MASKS, dtype: str = "bool") -> TensorSpec:
    return TensorSpec("mask", axes, dtype, "mask", kinds)


def _tokens(d_model: int = D_MODEL) -> TensorSpec:
    return TensorSpec("X", ("batch", "seq_len", d_model), role="tokens")


def _output(d_model: int = D_MODEL) -> TensorSpec:
    return TensorSpec("output", ("batch", "seq_len", d_model), role="output")


def _contract(
    *inputs: TensorSpec,
    outputs: tuple[TensorSpec, ...] = (_output(),),
    traced: dict[str, int] = TRACED,
    empty_rows: EmptyRows | None = None,
    specification: str | None = None,
    causal: Causal = "no",
) -> Contract:
    empties = any("empty-row" in spec.masks for spec in inputs)
    policy = empty_rows or ("zero" if empties else "never")
    return Contract(inputs, outputs, traced, policy, specification, causal=causal)


SQUARE_MASK = _mask("batch", "seq_len", "seq_len")


def chapter_contract(d_k: int = D_K, d_v: int = D_V, specification: str | None = None) -> Contract:
    """Return the contract of the chapter's module, which takes Q, K, V and a mask and gives output and weights."""
    return _contract(
        TensorSpec("Q", ("batch", "seq_len", d_k), role="query"),
        TensorSpec("K", ("batch", "seq_len", d_k), role="key"),
        TensorSpec("V", ("batch", "seq_len", d_v), role="value"),
        SQUARE_MASK,
        outputs=(_output(d_v), TensorSpec("weights", ("batch", "seq_len", "seq_len"), role="weights")),
        empty_rows="nan",
        specification=specification,
    )


CHAPTER = chapter_contract(specification=SCALED_DOT_PRODUCT)
"""The chapter's module returns NaN in a row without any key: softmax of nothing but -inf."""

CROSS = _contract(
    TensorSpec("X", ("batch", "q_len", D_MODEL), role="tokens"),
    TensorSpec("memory", ("batch", "kv_len", D_MEMORY), role="tokens"),
    _mask("batch", "q_len", "kv_len"),
    outputs=(TensorSpec("output", ("batch", "q_len", D_MODEL), role="output"),),
    traced={"batch": 2, "q_len": 7, "kv_len": 16},
)

_CACHE = ("batch", HEADS, "past_len", D_MODEL // HEADS)
_PRESENT = ("batch", HEADS, "past_len + seq_len", D_MODEL // HEADS)
CACHED = _contract(
    _tokens(),
    TensorSpec("past_key", _CACHE, role="key"),
    TensorSpec("past_value", _CACHE, role="value"),
    outputs=(_output(), TensorSpec("present_key", _PRESENT), TensorSpec("present_value", _PRESENT)),
    traced={"batch": 2, "seq_len": 7, "past_len": 16},
    causal="bottom-right",
)

PADDED = _contract(
    _tokens(),
    TensorSpec("real", ("batch", "seq_len"), "bool", "mask", ("all", "padding", "left-padding", "holes")),
)

IGNORED = TensorSpec(
    "key_padding_mask", ("batch", "seq_len"), "bool", "mask", ("all", "padding", "left-padding", "holes"), inverted=True
)  # fmt: skip


def _four_axes(
    *more: TensorSpec, heads: int = HEADS, kv_heads: int = HEADS, causal: Causal = "no"
) -> Contract:
    """Return the contract of scaled_dot_product_attention itself, with heads as an axis and another length of keys."""
    return _contract(
        TensorSpec("Q", ("batch", heads, "q_len", D_K), role="query"),
        TensorSpec("K", ("batch", kv_heads, "kv_len", D_K), role="key"),
        TensorSpec("V", ("batch", kv_heads, "kv_len", D_V), role="value"),
        *more,
        outputs=(TensorSpec("output", ("batch", heads, "q_len", D_V), role="output"),),
        traced={"batch": 2, "q_len": 7, "kv_len": 16},
        causal=causal,
    )


def _four_axes_mask(dtype: str) -> TensorSpec:
    return _mask("batch", 1, "q_len", "kv_len", dtype=dtype)


CATALOGUE: tuple[Entry, ...] = (
    Entry(
        "sdpa", "scaled dot-product attention as the chapter writes it; returns output and weights",
        CHAPTER, _build("scaled_dot_product", "ScaledDotProductAttention", D_K), ("decomposed",),
    ),
    Entry(
        "self-attention", "Q, K and V from one X by three linear maps, optional mask",
        _contract(_tokens(), SQUARE_MASK, outputs=(_output(D_V),)),
        _build("scaled_dot_product", "SelfAttention", D_MODEL, D_K, D_V),
    ),
    Entry(
        "mha", f"multi-head self-attention, {HEADS} heads, optional mask",
        _contract(_tokens(), SQUARE_MASK), _build("multi_head", "MultiHeadAttention", D_MODEL, HEADS),
    ),
    Entry(
        "causal", "multi-head self-attention whose causal mask is built from the dynamic length",
        _contract(_tokens(), causal="top-left"), _build("multi_head", "CausalSelfAttention", D_MODEL, HEADS),
    ),
    Entry(
        "cross", "queries from one sequence, keys and values from another of another length and width",
        CROSS, _build("forms", "CrossAttention", D_MODEL, D_MEMORY, HEADS),
    ),
    Entry(
        "gqa", f"grouped queries: {2 * HEADS} query heads share {HEADS} key heads",
        _contract(_tokens(D_WIDE), SQUARE_MASK, outputs=(_output(D_WIDE),)),
        _build("forms", "GroupedQueryAttention", D_WIDE, 2 * HEADS, HEADS),
    ),
    Entry(
        "mqa", f"multi-query: {HEADS} query heads share one key head",
        _contract(_tokens(), SQUARE_MASK), _build("forms", "GroupedQueryAttention", D_MODEL, HEADS, 1),
    ),
    Entry(
        "cached", "new tokens attend to a cache and causally to each other: a decode step, or prefill in chunks",
        CACHED, _build("forms", "CachedAttention", D_MODEL, HEADS),
    ),
    Entry(
        "sliding-window", f"each token attends to the {WINDOW} last ones",
        _contract(_tokens(), causal="top-left"), _build("forms", "SlidingWindowAttention", D_MODEL, HEADS, WINDOW),
    ),
    Entry("padded", "a mask of the real tokens, the same for every query", PADDED,
          _build("forms", "PaddedAttention", D_MODEL, HEADS)),
    Entry(
        "additive-mask", "a floating mask that is added to the scores",
        _contract(_tokens(), _mask("batch", "seq_len", "seq_len", dtype="float")),
        _build("forms", "AdditiveMaskAttention", D_MODEL, HEADS),
    ),
    Entry(
        "rotary", "queries and keys rotated by their position, causal",
        _contract(_tokens(D_EVEN), outputs=(_output(D_EVEN),), causal="top-left"), _build("forms", "RotaryAttention", D_EVEN, HEADS),
    ),
    Entry("alibi", "linear biases by distance, causal", _contract(_tokens(), causal="top-left"),
          _build("forms", "AlibiAttention", D_MODEL, HEADS)),
    Entry(
        "softcap", "scores bent to +-cap by tanh before the mask; the softmax is written out",
        _contract(_tokens(), _mask("batch", "seq_len", "seq_len", kinds=MASKS[:-1])),
        _build("forms", "SoftcapAttention", D_MODEL, HEADS, 5.0), ("decomposed",),
    ),
    Entry(
        "torch-mha", "torch.nn.MultiheadAttention with key_padding_mask",
        _contract(_tokens(), IGNORED), _build("torch_modules", "TorchMultiheadAttention", D_MODEL, HEADS, need_weights=False),
    ),
    Entry(
        "torch-mha-weights", "torch.nn.MultiheadAttention with key_padding_mask, returning the mean weights",
        _contract(_tokens(), IGNORED, outputs=(_output(), TensorSpec("mean_weights", ("batch", "seq_len", "seq_len")))),
        _build("torch_modules", "TorchMultiheadAttention", D_MODEL, HEADS, need_weights=True), ("decomposed",),
    ),
    Entry("torch-sdpa", "scaled_dot_product_attention with a boolean mask",
          _four_axes(_four_axes_mask("bool")), _build("torch_modules", "TorchScaledDotProduct")),
    Entry("torch-sdpa-additive", "scaled_dot_product_attention with a floating mask",
          _four_axes(_four_axes_mask("float")), _build("torch_modules", "TorchScaledDotProduct")),
    Entry("torch-sdpa-causal", "scaled_dot_product_attention with is_causal, aligned at the top left, q_len != kv_len",
          _four_axes(causal="top-left"), _build("torch_modules", "TorchScaledDotProduct", is_causal=True)),
    Entry("torch-sdpa-gqa", "scaled_dot_product_attention with enable_gqa and a scale of its own",
          _four_axes(heads=2 * HEADS), _build("torch_modules", "TorchScaledDotProduct", enable_gqa=True, scale=0.3)),
    Entry("block", "pre-norm transformer block", _contract(_tokens(), SQUARE_MASK),
          _build("blocks", "PreNormBlock", D_MODEL, HEADS, D_HIDDEN)),
    Entry("encoder", f"{BLOCKS} pre-norm blocks and a last normalisation", _contract(_tokens(), SQUARE_MASK),
          _build("blocks", "Encoder", D_MODEL, HEADS, D_HIDDEN, BLOCKS), dtypes=("float32",)),
    Entry("sdpa-naive", "counter-example: softmax without subtracting the row's maximum",
          CHAPTER, _build("scaled_dot_product", "NaiveSoftmaxAttention", D_K), ("decomposed",)),
    Entry("sdpa-unscaled", "counter-example: no division by sqrt(d_k)",
          CHAPTER, _build("scaled_dot_product", "UnscaledAttention", D_K), ("decomposed",)),
)  # fmt: skip

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
