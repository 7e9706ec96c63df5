"""The double twin: the same module in float64, as torch runs it and as the exporter writes it.

A file stores its constants in the dtype it was exported in, so a scale that is wrong by 1e-9 does not show in it. In
the twin it does.
"""

from __future__ import annotations

import copy
import weakref
from typing import TYPE_CHECKING, Any

from onnx_attest.export.lower import capture, example_inputs, lower, refuse_unsteady
from onnx_attest.export.strip import strip_metadata
from onnx_attest.models.contract import Contract

if TYPE_CHECKING:
    import onnx
    from torch import nn


class Twin:
    """A module in float64; captured once, lowered to each opset once."""

    def __init__(self, module: nn.Module, contract: Contract) -> None:
        """Copy the module into float64, where its parameters stay the numbers they are, and run it once.

        Raises:
            UsageError: it does not run in float64.
            Exception: whatever the module raises when it is copied.
        """
        import torch

        self.module = copy.deepcopy(module).double().eval()
        names = [spec.name for spec in contract.inputs]
        refuse_unsteady(self.module, dict(zip(names, example_inputs(contract, torch.float64), strict=True)))
        self._contract = contract
        self._captured: Any = None
        self._graphs: dict[int, onnx.ModelProto] = {}

    def graph(self, opset: int) -> onnx.ModelProto:
        """Return what the exporter makes of it at an opset.

        Raises:
            ExportError: the exporter failed.
        """
        import torch

        if opset not in self._graphs:
            examples = example_inputs(self._contract, torch.float64)
            self._captured = self._captured or capture(self.module, examples, self._contract)
            self._graphs[opset] = strip_metadata(
                lower(self._captured, self.module, examples, self._contract, opset)
            )
        return self._graphs[opset]

    def numbers(self) -> Any:
        """Return all numbers that the parameters and buffers hold, sorted, float64."""
        import torch

        held = [tensor.detach().reshape(-1).double() for tensor in self.module.state_dict().values()]
        return torch.unique(torch.cat([*held, torch.zeros(0, dtype=torch.float64)])).numpy()

    def folded(self) -> frozenset[str]:
        """Return the names of the module's own expressions: a constant of that name was computed by the exporter."""
        return frozenset(node.name for node in self._captured.graph.nodes if node.op == "call_function")

    def dtypes(self) -> frozenset[str]:
        """Return the dtypes of all tensors of the captured module, `float32` for example."""
        values = [node.meta.get("val") for node in self._captured.graph.nodes]
        flat = [one for value in values for one in (value if isinstance(value, tuple | list) else (value,))]
        return frozenset(str(one.dtype).removeprefix("torch.") for one in flat if hasattr(one, "dtype"))


_TWINS: weakref.WeakKeyDictionary[Any, Twin] = weakref.WeakKeyDictionary()


def twin_of(module: nn.Module, contract: Contract) -> Twin:
    """Return the twin of a module, the same one each time: the variants of one export share it."""
    if module not in _TWINS:
        _TWINS[module] = Twin(module, contract)
    return _TWINS[module]
