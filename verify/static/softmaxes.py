"""Rules about a softmax by itself."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from onnx_attest.verify.finder.found import Found, Softmax
from onnx_attest.verify.finder.graph import BFLOAT16, DOUBLE, FLOAT, FLOAT16, NAMES
from onnx_attest.verify.findings import Finding, finding

LARGEST = {
    FLOAT16: 65504.0,
    FLOAT: 3.4028234663852886e38,
    BFLOAT16: 3.3895313892515355e38,
    DOUBLE: 1.7976931348623157e308,
}
"""The largest number of each format."""
SMALLEST = {FLOAT16: 2.0**-14, FLOAT: 2.0**-126, BFLOAT16: 2.0**-126, DOUBLE: 2.0**-1022}
"""The smallest normal number of each."""


_KEYS = 2.0**20
"""More keys than this no row has: their number adds its logarithm to what a sum of exponentials may be."""


def without_the_maximum(found: Found, _empty_rows: str, _traced: Mapping[str, int]) -> Iterator[Finding]:
    """Yield softmaxes whose exponential reads the logits as they are: it overflows above the logarithm of the largest number."""
    for softmax in found.softmaxes:
        if not softmax.shifted and not is_bounded(softmax):
            largest, factor = LARGEST.get(softmax.kind, LARGEST[FLOAT]), math.log(softmax.base)
            name = NAMES.get(softmax.kind, "float32")
            text = (
                f"{softmax.node} is {softmax.form} without the maximum subtracted: above {math.log(largest) / factor:.2f} in "
                f"{name} the exponential is infinite and the row NaN"
            )
            yield finding("OA420", text, blame="module", node=softmax.node)


def is_bounded(softmax: Softmax) -> bool:
    """Whether a clip or a tanh keeps the logits where no exponential, and no sum of them, is infinite or 0."""
    largest, factor = LARGEST.get(softmax.kind, LARGEST[FLOAT]), math.log(softmax.base)
    least = SMALLEST.get(softmax.kind, SMALLEST[FLOAT])
    high, low = softmax.largest * factor + math.log(_KEYS), softmax.least * factor
    return high < math.log(largest) and (low > math.log(least) or softmax.added + softmax.floor > 0)


def over_another_axis(found: Found, _empty_rows: str, _traced: Mapping[str, int]) -> Iterator[Finding]:
    """Yield attentions whose softmax is over another axis than that which the product with the values sums: the keys'."""
    for attention in found.attentions:
        axis, keys = attention.softmax.axis, attention.summed
        if axis is not None and keys is not None and axis != keys:
            text = f"{attention.softmax.node} of the attention {attention.node} sums over axis {axis}, the keys are on axis {keys}"
            yield finding("OA421", text, node=attention.softmax.node)


def by_an_old_default(found: Found, _empty_rows: str, _traced: Mapping[str, int]) -> Iterator[Finding]:
    """Yield softmaxes below opset 13 that make one row of several axes."""
    for softmax in found.softmaxes:
        if softmax.block is None:
            continue
        rank = softmax.scope.rank(softmax.logits)
        shape = softmax.scope.shape(softmax.logits) or ()
        several = [size for size in shape[softmax.block :] if size != 1]
        if rank is None or softmax.block >= rank - 1 or len(several) < 2:
            continue
        text = (
            f"{softmax.node} is {softmax.form} of opset {softmax.scope.opset}, where axis {softmax.block} of {rank} means "
            f"all axes from there on: {rank - softmax.block} axes are one row"
        )
        yield finding("OA422", text, node=softmax.node)


def in_half_precision(found: Found, _empty_rows: str, _traced: Mapping[str, int]) -> Iterator[Finding]:
    """Yield softmaxes that the graph leaves in a format of 16 bits."""
    for softmax in found.softmaxes:
        if softmax.kind in (FLOAT16, BFLOAT16) and not _asks_for_single(softmax):
            text = f"{softmax.node} sums its exponentials in {NAMES[softmax.kind]}, unless the runtime does otherwise"
            yield finding("OA423", text, node=softmax.node)


def _asks_for_single(softmax: Softmax) -> bool:
    return any(
        one.name == "softmax_precision" and one.i in (FLOAT, DOUBLE) for one in softmax.nodes[0].attribute
    )


def of_products_that_overflow(
    found: Found, _empty_rows: str, _traced: Mapping[str, int]
) -> Iterator[Finding]:
    """Yield float16 attentions that multiply queries and keys before they scale."""
    for attention in found.attentions:
        if attention.is_operator or attention.scope.kind(attention.product.output[0]) != FLOAT16:
            continue
        late = [scale for scale in attention.scales if scale.where == "logits" and abs(scale.factor) < 1]
        size = attention.head_size
        if not late or not size:
            continue
        limit = math.sqrt(LARGEST[FLOAT16] / size)
        text = (
            f"{attention.node} scales its logits after the product, which is float16: {size} products of numbers above "
            f"{limit:.3g} are infinite; scaled before, above {limit / math.sqrt(late[0].factor):.3g}"
        )
        yield finding("OA424", text, node=attention.product.output[0])
