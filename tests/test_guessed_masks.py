"""Masks that nobody declared: what is fed to a file whose contract is guessed, and what its rows without a key come to."""

from __future__ import annotations

import pytest

from onnx_attest.export import export
from onnx_attest.models.contract import guess_input
from onnx_attest.verify import verify

torch = pytest.importorskip("torch", reason="modules are torch's")


class Decoder(torch.nn.Module):
    """Attention under a causal mask of its own; `fill` writes the softmax out and hides keys by -inf."""

    def __init__(self, *, fill: bool, causal: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inner = torch.nn.Linear(8, 24)
        self.fill, self.causal = fill, causal

    def forward(self, x, mask):
        q, k, v = (part.unflatten(-1, (2, 4)).transpose(1, 2) for part in self.inner(x).chunk(3, dim=-1))
        if self.causal:
            length = x.shape[1]
            mask = torch.ones(length, length, dtype=torch.bool).tril() & mask[:, None, None, :]
        if not self.fill:
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        logits = (q @ k.transpose(-1, -2) / 2).masked_fill(~mask, float("-inf"))
        return logits.softmax(-1) @ v


def verified(folder, module, *, against):
    """Return the report of the module's file, exported at opset 18 without a manifest."""
    pairwise = not module.causal
    x, mask = torch.randn(2, 5, 8), torch.ones((2, 1, 5, 5) if pairwise else (2, 5), dtype=torch.bool)
    axes = {0: "batch", 2: "length", 3: "length"} if pairwise else {0: "batch", 1: "length"}
    dynamic = {"x": {0: "batch", 1: "length"}, "mask": axes}
    artifact = export(
        module.eval(),
        (x, mask),
        dynamic=dynamic,
        opset=18,
        path=folder / "decoder.onnx",
    )
    alone = folder / "alone.onnx"  # without its manifest: the contract is what the file shows
    alone.write_bytes(artifact.path.read_bytes())
    # At one size: what counts here are the masks.
    shapes = {"x": (2, 5, 8), "mask": tuple(mask.shape)}
    return verify(alone, runtimes=["ort-cpu"], against=module if against else None, input_shapes=shapes)


@pytest.mark.parametrize("axes", [("batch", "s"), ("batch", 1, "s", "s"), ("s", "t")])
def test_every_mask_that_may_be_fed_is_guessed(axes):
    """Two axes tell of keys, and of no query: causal and single rows are for more."""
    masks = guess_input("mask", axes, "bool").masks
    assert {"all", "padding", "left-padding", "holes"} <= set(masks)
    assert ({"causal", "empty-row"} <= set(masks)) == (len(axes) > 2)


def test_padding_on_the_left_of_a_causal_module_is_fed(tmp_path):
    """microsoft/onnxscript#2654 as it is met: nobody feeds an empty row, a causal mask and a padded one make it."""
    report = verified(tmp_path, Decoder(fill=False, causal=True), against=True)
    failed = [cell for cell in report.cells if cell.verdict == "failed"]
    assert {(cell.runtime, cell.case.mask) for cell in failed} == {("exporter", "left-padding")}


def test_a_row_without_any_key_is_fed_where_each_row_has_a_mask_of_its_own(tmp_path):
    report = verified(tmp_path, Decoder(fill=False, causal=False), against=True)
    failed = [cell for cell in report.cells if cell.verdict == "failed"]
    assert {(cell.runtime, cell.case.mask) for cell in failed} == {("exporter", "empty-row")}


@pytest.mark.parametrize("against", [False, True])
def test_nan_of_a_row_that_we_emptied_is_said_and_fails_nobody(tmp_path, against):
    report = verified(tmp_path, Decoder(fill=True, causal=False), against=against)
    assert report.verdict == "passed"
    (left_out,) = [cell for cell in report.cells if cell.verdict == "skipped"]
    assert (left_out.case.mask, left_out.findings) == ("empty-row", ("OA808",))
    assert "nobody says that a row may be left without any key" in left_out.reason
