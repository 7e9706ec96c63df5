"""All rules, in the order of their codes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from onnx_attest.verify.finder.find import find
from onnx_attest.verify.finder.found import Found
from onnx_attest.verify.findings import Finding
from onnx_attest.verify.static import codes, masks, scales, sizes, softmaxes

RULES = (
    masks.of_one_row,
    masks.of_a_rank_that_is_refused,
    sizes.fixed_by_a_constant,
    softmaxes.without_the_maximum,
    softmaxes.over_another_axis,
    softmaxes.by_an_old_default,
    softmaxes.in_half_precision,
    softmaxes.of_products_that_overflow,
    scales.of_an_attention,
    masks.of_rows_without_keys,
    masks.beyond_the_format,
    masks.zero_times_infinity,
    masks.before_a_softcap,
    masks.aligned_by_equal_lengths,
    codes.that_swallow,
)


def static_findings(
    model: Any,
    *,
    empty_rows: str = "unknown",
    traced: Mapping[str, int] | None = None,
    found: Found | None = None,
) -> list[Finding]:
    """Return what the rules find in an onnx.ModelProto.

    Args:
        model: is not changed, and nothing of it is run.
        empty_rows: the policy that somebody declared for rows without any key, `nan`, `zero` or `mean`; what the graph
            does by that is no fault.
        traced: the sizes of dynamic axes that the module was exported with, by their names.
        found: of the model, if it has been searched before.
    """
    return list(_all(found or find(model), empty_rows, traced or {}))


def _all(found: Found, empty_rows: str, traced: Mapping[str, int]) -> Iterator[Finding]:
    for rule in RULES:
        yield from rule(found, empty_rows, traced)
