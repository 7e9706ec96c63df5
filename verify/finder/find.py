"""The finder: all softmaxes and attentions of a model."""

from __future__ import annotations

from typing import Any

from onnx_attest.verify.finder.attentions import attentions_in
from onnx_attest.verify.finder.found import Attention, Found, Softmax
from onnx_attest.verify.finder.graph import scopes_of
from onnx_attest.verify.finder.softmaxes import softmaxes_in


def find(model: Any) -> Found:
    """Return what is in an onnx.ModelProto: in its graph, the bodies of its nodes, and its functions."""
    scopes = scopes_of(model)
    softmaxes: list[Softmax] = []
    attentions: list[Attention] = []
    for scope in scopes:
        own = list(softmaxes_in(scope))
        softmaxes += own
        attentions += attentions_in(scope, own)
    return Found(tuple(scopes), tuple(softmaxes), tuple(attentions))
