"""A module of a user's own, for a file that `onnx-attest run --model FILE:factory` takes."""

DOUBLE = """
import os, signal, torch
from onnx_attest.models import Contract, Entry, TensorSpec

class Double(torch.nn.Module):
    def forward(self, x):
        {in_eager}
        return x + x

contract = Contract(
    (TensorSpec("x", ("batch", 3)),), (TensorSpec("output", ("batch", 3), role="output"),), {{"batch": 2}}
)
factory = Entry("double", "x + x", contract, lambda: Double().eval(), ("decomposed",))
"""
"""Its source; `in_eager` is a line of its forward."""
