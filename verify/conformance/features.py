"""What a case asks of its operator, read off the graph and the inputs and never off the case's name.

A feature is a row of the matrix. A case has as many as it uses together; one that uses nothing but the defaults is
`plain`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np
import onnx

from onnx_attest.verify.conformance.asked import Asked, asked_of
from onnx_attest.verify.conformance.attention_features import attention_features
from onnx_attest.verify.conformance.case import Arrays

PLAIN = "plain"
_SINCE_ONE_AXIS = 13
_EXP_OVERFLOWS = 88.0
"""exp of more is infinite in float32: without the largest logit subtracted it shows."""


def features_of(model: onnx.ModelProto, operator: str, inputs: Arrays) -> tuple[str, ...]:
    """Return the features of a case whose graph has a node of `operator`."""
    asked = asked_of(model, operator, inputs)
    found = list(dict.fromkeys(_OF[operator](asked)))
    name = asked.required(0).dtype.name
    if name != "float32":
        found.append(name)
    return tuple(found) or (PLAIN,)


def _flex_attention(asked: Asked) -> Iterator[str]:
    if asked.required(1).shape[1] < asked.required(0).shape[1]:
        yield "grouped heads"
    if asked.required(2).shape[-1] != asked.required(0).shape[-1]:
        yield "other head size of V"
    if asked.get("scale") is not None:
        yield "scale given"
    yield from (name for name in sorted(asked.attributes) if name.endswith("_mod"))


def _linear_attention(asked: Asked) -> Iterator[str]:
    yield f"update rule {asked.get('update_rule', 'gated_delta')}"
    if asked.get("kv_num_heads") < asked.get("q_num_heads"):
        yield "grouped heads"
    if asked.optional(3) is not None:
        yield "past state"
    if asked.get("scale", 0.0):
        yield "scale given"
    if asked.required(0).shape[1] == 1:
        yield "one token"


def _softmax(asked: Asked) -> Iterator[str]:
    x = asked.required(0).astype(np.float64)
    axis = asked.get("axis", -1 if asked.opset >= _SINCE_ONE_AXIS else 1) % x.ndim
    if asked.opset < _SINCE_ONE_AXIS:
        yield "opset before 13: a block, not an axis"
    yield "last axis" if axis == x.ndim - 1 else "another axis than the last"
    if x.size == 0:
        yield "no numbers"
        return
    if np.isneginf(x).all(axis).any():
        yield "row of -inf"
    elif np.isneginf(x).any():
        yield "some -inf"
    if np.abs(x, where=np.isfinite(x), out=np.zeros_like(x)).max() > _EXP_OVERFLOWS:
        yield "beyond 88"


def _rotary(asked: Asked) -> Iterator[str]:
    yield f"{asked.required(0).ndim} axes"
    yield "position_ids" if asked.optional(3) is not None else "without position_ids"
    if asked.get("interleaved", 0):
        yield "interleaved"
    if asked.get("rotary_embedding_dim", 0):
        yield "rotary_embedding_dim"


def _normalization(asked: Asked) -> Iterator[str]:
    x = asked.required(0)
    yield "last axis" if asked.get("axis", -1) % x.ndim == x.ndim - 1 else "several axes"
    if asked.get("epsilon") is not None:
        yield "epsilon given"
    if asked.get("stash_type") is not None:
        yield "stash_type given"
    if asked.asks_for(1) or asked.asks_for(2):
        yield "mean and inverse deviation"
    if x.size == 0:
        yield "no numbers"


def _layer_normalization(asked: Asked) -> Iterator[str]:
    yield from _normalization(asked)
    if asked.optional(2) is None:
        yield "without bias"


def _gelu(asked: Asked) -> Iterator[str]:
    yield f"approximate {asked.get('approximate', 'none')}"


def _tensor_scatter(asked: Asked) -> Iterator[str]:
    yield f"mode {asked.get('mode', 'linear')}"
    yield f"{asked.required(0).ndim} axes"
    if asked.optional(2) is None:
        yield "without write_indices"


_OF: Mapping[str, Callable[[Asked], Iterator[str]]] = {
    "Attention": attention_features,
    "FlexAttention": _flex_attention,
    "LinearAttention": _linear_attention,
    "Softmax": _softmax,
    "LogSoftmax": _softmax,
    "RotaryEmbedding": _rotary,
    "LayerNormalization": _layer_normalization,
    "RMSNormalization": _normalization,
    "Gelu": _gelu,
    "TensorScatter": _tensor_scatter,
}
