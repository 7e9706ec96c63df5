"""Small models of transformers with random weights, as a user would write them into a file of factories."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import transformers

from onnx_attest.models import Contract, Entry, TensorSpec
from onnx_attest.models.contract import MaskKind

BELOW = 101
LONGEST = 64
WIDTH = 32
TOKENS = ("batch", "seq_len")
_STACK = {
    "hidden_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48,
}  # fmt: skip
ANY_PADDING: tuple[MaskKind, ...] = ("all", "padding", "left-padding", "holes")
PADDING: tuple[MaskKind, ...] = ("all", "padding")
"""A causal model with padding on the left has rows without any key, which the exporter makes something else of."""


def _mask(kinds: tuple[MaskKind, ...]) -> TensorSpec:
    return TensorSpec("attention_mask", TOKENS, "int64", "mask", kinds)


def _entry(
    name: str,
    inputs: tuple[TensorSpec, ...],
    output: TensorSpec,
    traced: dict[str, int],
    build: Callable[[], Any],
    longest: dict[str, int] | None = None,
) -> Entry:
    contract = Contract(inputs, (output,), traced, longest=longest or {})
    return Entry(name, "two layers, random weights", contract, lambda: build().eval())


def _tokens_to(name: str, width: int, axes: tuple[str, str] = TOKENS) -> TensorSpec:
    return TensorSpec(name, (*axes, width), role="output")


IDS = TensorSpec("input_ids", TOKENS, "int64")
TRACED = {"batch": 3, "seq_len": 11}


def bert(attention: str = "sdpa") -> Entry:
    """An encoder; of its two outputs the file has one."""
    config = transformers.BertConfig(
        **_STACK, vocab_size=BELOW, max_position_embeddings=LONGEST, attn_implementation=attention
    )
    return _entry(
        "bert",
        (IDS, _mask(ANY_PADDING)),
        _tokens_to("last_hidden_state", WIDTH),
        TRACED,
        lambda: transformers.BertModel(config),
        {"seq_len": LONGEST},
    )


def gpt2(attention: str = "sdpa") -> Entry:
    """A decoder whose head is its table of tokens; it returns a cache too, which the file leaves out."""
    config = transformers.GPT2Config(
        n_embd=WIDTH, n_layer=2, n_head=4, vocab_size=BELOW, n_positions=LONGEST, bos_token_id=1, eos_token_id=2,
        attn_implementation=attention,
    )  # fmt: skip
    return _entry(
        "gpt2",
        (IDS, _mask(PADDING)),
        _tokens_to("logits", BELOW),
        TRACED,
        lambda: transformers.GPT2LMHeadModel(config),
        {"seq_len": LONGEST},
    )


def llama(attention: str = "sdpa") -> Entry:
    """Rotary positions, RMS normalisation, two heads of keys for four of queries."""
    config = transformers.LlamaConfig(
        **_STACK, vocab_size=BELOW, num_key_value_heads=2, attn_implementation=attention
    )
    return _entry(
        "llama",
        (IDS, _mask(PADDING)),
        _tokens_to("logits", BELOW),
        TRACED,
        lambda: transformers.LlamaForCausalLM(config),
    )


def vit(attention: str = "sdpa") -> Entry:
    """Images of one size: only the batch is dynamic."""
    config = transformers.ViTConfig(**_STACK, image_size=32, patch_size=8, attn_implementation=attention)
    image = TensorSpec("pixel_values", ("batch", 3, 32, 32))
    output = TensorSpec("last_hidden_state", ("batch", 17, WIDTH), role="output")
    return _entry("vit", (image,), output, {"batch": 3}, lambda: transformers.ViTModel(config))


def t5() -> Entry:
    """Encoder and decoder in one; torch's exporter does not lower its scaled_dot_product_attention."""
    config = transformers.T5Config(
        d_model=WIDTH, d_kv=8, d_ff=48, num_layers=2, num_heads=4, vocab_size=BELOW, attn_implementation="eager"
    )  # fmt: skip
    target = ("batch", "target_len")
    return _entry(
        "t5",
        (IDS, _mask(ANY_PADDING), TensorSpec("decoder_input_ids", target, "int64")),
        _tokens_to("last_hidden_state", WIDTH, target),
        {"batch": 3, "seq_len": 11, "target_len": 7},
        lambda: transformers.T5Model(config),
    )
