"""One attention of one head, written out and as one call, without anything around it: what attention alone costs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onnx_attest.models.contract import Contract, Role, TensorSpec
from onnx_attest.models.entry import Entry

if TYPE_CHECKING:
    from torch import nn

D_HEAD = 64
"""The usual width of a head: kernels are made for it."""


def _tensor(name: str, role: Role) -> TensorSpec:
    return TensorSpec(name, (1, 1, "seq_len", D_HEAD), role=role)


_CONTRACT = Contract(
    inputs=(_tensor("Q", "query"), _tensor("K", "key"), _tensor("V", "value")),
    outputs=(_tensor("output", "output"),),
    traced={"seq_len": 7},
    empty_rows="never",
)


def _written_out() -> nn.Module:
    from onnx_attest.models.scaled_dot_product import OutputAlone

    return OutputAlone(D_HEAD).eval()


def _fused() -> nn.Module:
    from onnx_attest.models.torch_modules import TorchScaledDotProduct

    return TorchScaledDotProduct().eval()


WRITTEN_OUT = Entry("written-out", "products, softmax, products", _CONTRACT, _written_out, ("decomposed",))
FUSED = Entry("fused", "one scaled_dot_product_attention", _CONTRACT, _fused, ("attention",))
