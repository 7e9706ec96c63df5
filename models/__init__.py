"""Attention modules in PyTorch and their contracts.

`CATALOGUE` lists the built-in entries. Nothing here imports torch before a module is built.
"""

from onnx_attest.models.catalogue import CATALOGUE, catalogue
from onnx_attest.models.contract import Contract, TensorSpec
from onnx_attest.models.entry import Entry, build_module, resolve

__all__ = ["CATALOGUE", "Contract", "Entry", "TensorSpec", "build_module", "catalogue", "resolve"]
