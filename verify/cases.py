"""From a contract to concrete inputs: sizes at the edges, masks, logit scales; every number from a seed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from onnx_attest.models.contract import Contract, TensorSpec
from onnx_attest.verify.records import CaseRecord
from onnx_attest.verify.runtimes.base import Tensors

SCALED = ("query", "key", "tokens")
"""Roles of inputs that logits are made of."""
LOGIT_STDS = (0.3, 1.0, 3.0, 10.0, 30.0)
"""Deviations of the logits: flat softmax to saturated. Faults show best at 1 to 3 (NUMERICS.md section 3)."""
USUAL_STD = 2.0
FEWEST = 2
"""Integers of which nobody says how many there are, and which index nothing, are the least one and the next."""
OVERFLOW_STD = 100.0
"""At this deviation the largest of a few hundred logits is beyond 88.7, where exp overflows in fp32."""

# (name, batch, length) of the sweep; None is the traced size. Lengths sit at 1, at the traced size and its
# neighbours, and off the multiples of 8 and 32 in which kernels work.
_SIZES: tuple[tuple[str, int | None, int | str], ...] = (
    ("single", 3, 1),
    ("traced", None, "traced"),
    ("traced-1", None, "traced-1"),
    ("traced+1", None, "traced+1"),
    ("batch+1", 3, "traced"),
    ("off-8", 4, 13),
    ("off-32", 2, 33),
    ("long", 1, 129),
    ("longest", 3, 257),
)
_COARSE_SIZES: tuple[tuple[str, int | None, int | str], ...] = (
    ("single", 1, 1),
    ("traced", None, "traced"),
    ("traced+1", None, "traced+1"),
    ("batch+1", 3, "traced"),
    ("long", 1, 7),
)
"""The same where sizes are multiples of a number: two axes of 7 times 32 are an image already."""
_ABOUT_LOGITS = ("logits", "overflow")
_STUDIED_LENGTH, _STUDIED_BATCH = 37, 3
"""Masks and logit scales are varied at this size, so that only one thing changes at a time."""


def plan_cases(contract: Contract, *, seed: int = 0, attention: bool = True) -> list[CaseRecord]:
    """Return the cases that a contract asks for: a sweep of sizes, then of masks, then of logit scales.

    Args:
        contract: of the artifact.
        seed: of the run; each case's own seed is hashed from it and the case, so that adding a case changes no other.
        attention: whether there are logits to scale.
    """
    masks = contract.mask_kinds()
    plain = "all" if "all" in masks else (masks[0] if masks else None)
    std = USUAL_STD if attention else None
    sizes = _SIZES if contract.granularity == 1 else _COARSE_SIZES
    cases = [
        _case(contract, name, batch, length, plain, std) for name, batch, length in sizes
    ] if list(contract.symbolic_axes()) else [_case(contract, "fixed", None, "traced", plain, std)]  # fmt: skip
    studied = (_STUDIED_BATCH, _STUDIED_LENGTH if contract.granularity == 1 else "traced")
    cases += [_case(contract, f"mask-{mask}", *studied, mask, std) for mask in masks if mask != plain]
    if attention:
        cases += [_case(contract, "logits", *studied, plain, value) for value in LOGIT_STDS]
        cases += [_case(contract, "overflow", *studied, plain, OVERFLOW_STD)]
    # Unscaled: equal logits everywhere, and inputs whose products are exact. Without logits that are swept, what is cut
    # off at 6, say, is not reached by numbers around 0.
    cases += [
        msgspec.structs.replace(_case(contract, name, *studied, plain, None), distribution=name)
        for name in ("constant", "integers", *(() if attention else ("wide",)))
    ]
    if _lengths(contract) > 1:
        cases += [_case(contract, "one-query", 2, "one-query", plain, std)]
    return [_seeded(case, seed) for case in cases]


def without_unreachable(
    cases: Sequence[CaseRecord], reachable: Mapping[float | None, bool]
) -> list[CaseRecord]:
    """Return the cases without those that are about a logit deviation which scaling the inputs does not reach.

    The others keep their sizes and masks, with inputs as they come.
    """
    kept = []
    for case in cases:
        if reachable[case.logit_std]:
            kept.append(case)
        elif case.name not in _ABOUT_LOGITS:
            kept.append(msgspec.structs.replace(case, logit_std=None))
    return kept


def _lengths(contract: Contract) -> int:
    return sum(not contract.is_batch(axis) for axis in contract.symbolic_axes())


def case_of_axes(
    contract: Contract, axes: Mapping[str, int], *, seed: int, attention: bool
) -> list[CaseRecord]:
    """Return the cases at sizes that the user gave: each mask, at the usual logit scale."""
    masks: Iterable[str | None] = contract.mask_kinds() or (None,)
    std = USUAL_STD if attention else None
    return [
        _seeded(CaseRecord(name="given", axes=dict(axes), mask=mask, logit_std=std), seed) for mask in masks
    ]


def _case(
    contract: Contract, name: str, batch: int | None, length: int | str, mask: str | None, std: float | None
) -> CaseRecord:
    return CaseRecord(name=name, axes=_sizes(contract, batch, length), mask=mask, logit_std=std)


def _seeded(case: CaseRecord, seed: int) -> CaseRecord:
    key = f"{seed}/{case.id}".encode()
    hashed = int.from_bytes(hashlib.sha256(key).digest()[:4], "big")
    return msgspec.structs.replace(case, seed=hashed)


def _sizes(contract: Contract, batch: int | None, length: int | str) -> dict[str, int]:
    """Return a size for each symbolic axis, all different from each other and from the fixed sizes.

    Only a length of 1 and the traced sizes are kept whatever they collide with: they are what the case is for.
    """
    taken = {axis for spec in contract.inputs for axis in spec.axes if isinstance(axis, int)}
    sizes: dict[str, int] = {}
    for offset, axis in enumerate(contract.symbolic_axes()):
        wanted, keep = _wanted(contract, axis, offset, batch, length)
        step = 1 if contract.is_batch(axis) else contract.granularity
        wanted = min(wanted, max(1, contract.longest.get(axis, wanted * step) // step))
        downwards = wanted * step >= contract.longest.get(axis, wanted * step + 1)
        while not keep and wanted > 1 and (wanted * step in taken or wanted * step in sizes.values()):
            wanted += -1 if downwards else 1
        sizes[axis] = wanted * step
    return sizes


def _wanted(
    contract: Contract, axis: str, offset: int, batch: int | None, length: int | str
) -> tuple[int, bool]:
    traced = contract.traced[axis]
    if not contract.is_batch(axis):
        traced = max(1, traced // contract.granularity)
    if length == "one-query":  # the first length is that of the queries
        first = next(name for name in contract.symbolic_axes() if not contract.is_batch(name))
        return (
            (1, True)
            if axis == first
            else (batch or traced, False)
            if contract.is_batch(axis)
            else (13 + 4 * offset, False)
        )
    if contract.is_batch(axis):
        return (traced, True) if batch is None else (batch, batch == 1)
    if isinstance(length, str):  # "traced", "traced-1", "traced+1"
        return max(1, traced + int(length.removeprefix("traced") or 0)), True
    # Several length axes get several lengths, so that one taken for the other shows.
    return (1, True) if length == 1 else (length + 4 * max(0, offset - 1), False)


def make_inputs(
    contract: Contract, case: CaseRecord, *, gain: float = 1.0, dtype: np.dtype[Any] | None = None
) -> Tensors:
    """Return the inputs of a case by name.

    Args:
        contract: of the artifact.
        case: names sizes, mask and seed.
        gain: factor on everything that the logits are made of, see `Calibration`.
        dtype: of the floating inputs, float32 by default.
    """
    rng = np.random.default_rng(case.seed)
    floating = np.dtype(np.float32) if dtype is None else dtype
    return {spec.name: _tensor(spec, case, rng, gain, floating) for spec in contract.inputs}


def shape_of(spec: TensorSpec, axes: Mapping[str, int]) -> tuple[int, ...]:
    """Return the shape of an input where its symbolic axes have these sizes."""
    return tuple(axis if isinstance(axis, int) else axes[axis] for axis in spec.axes)


def longest_axis(contract: Contract, axes: Mapping[str, int]) -> int:
    """Return the size of the longest axis of the inputs, dynamic or fixed, but for what a token is made of."""
    features = ("query", "key", "value", "tokens")
    counted = (shape_of(spec, axes)[: -1 if spec.role in features else None] for spec in contract.inputs)
    return max((size for shape in counted for size in shape), default=1)


def _tensor(
    spec: TensorSpec, case: CaseRecord, rng: np.random.Generator, gain: float, floating: np.dtype[Any]
) -> NDArray[Any]:
    shape = shape_of(spec, case.axes)
    if spec.role == "mask":
        return _mask_tensor(spec, make_mask(case.mask or "all", shape, rng), floating)
    if spec.dtype == "float":
        factor = gain if spec.role in SCALED else 1.0
        with np.errstate(
            over="ignore"
        ):  # a gain that half precision cannot hold; the calibration sees infinities
            return np.asarray(_numbers(case.distribution, shape, rng) * factor, floating)
    if spec.dtype == "bool":
        return np.asarray(rng.random(shape) < 0.5)  # of no axes, NumPy gives a number that is no array
    below = spec.least + FEWEST if spec.below is None else spec.below
    return np.asarray(rng.integers(spec.least, below, shape)).astype(np.dtype(spec.dtype))


def _numbers(distribution: str, shape: tuple[int, ...], rng: np.random.Generator) -> NDArray[Any]:
    """Return numbers of a distribution: `gauss`; `wide`, ten times as far; `integers`; `constant`, at every position."""
    if distribution == "wide":
        return 10 * rng.standard_normal(shape)
    if distribution == "integers":
        return rng.integers(-3, 4, shape).astype(np.float64)
    if distribution == "constant" and len(shape) > 1:
        one = rng.standard_normal((*shape[:-2], 1, shape[-1]))
        return np.broadcast_to(one, shape).copy()
    return rng.standard_normal(shape)


def _mask_tensor(spec: TensorSpec, allowed: NDArray[np.bool_], floating: np.dtype[Any]) -> NDArray[Any]:
    if spec.dtype == "float":
        return np.where(allowed, 0.0, -np.inf).astype(floating)
    return np.asarray(allowed != spec.inverted).astype(np.dtype(spec.dtype))


def allowed_by(spec: TensorSpec, mask: NDArray[Any]) -> NDArray[np.bool_]:
    """Return which keys a mask lets be attended, (..., queries, keys): the inverse of how it was made."""
    allowed = mask.astype(np.float64) == 0 if spec.dtype == "float" else mask.astype(bool) != spec.inverted
    return np.asarray(allowed[:, None, :] if mask.ndim == 2 else allowed)


def make_mask(kind: str, shape: tuple[int, ...], rng: np.random.Generator) -> NDArray[np.bool_]:
    """Return a mask (..., queries, keys), true where a key may be attended.

    `all` hides nothing; `causal` hides the future (top-left aligned); `padding` hides the last keys of each sequence,
    a different number in each, `left-padding` the first ones; `holes` hides a random third, never a whole row; `empty-row` is `holes` with one row
    of each sequence hidden whole.
    """
    if len(shape) == 2:  # (batch, keys): one row for all queries
        return np.asarray(make_mask(kind, (shape[0], 1, shape[1]), rng)[:, 0])
    *_, queries, keys = shape
    if kind == "all":
        return np.ones(shape, bool)
    if kind == "causal":
        return np.broadcast_to(np.tril(np.ones((queries, keys), bool)), shape).copy()
    if kind == "padding":
        return _padding(shape)
    if kind == "left-padding":
        return np.asarray(_padding(shape)[..., ::-1].copy())
    mask = rng.random(shape) > 1 / 3
    # Each row keeps the key on its diagonal, so that none is empty by chance.
    rows = np.arange(queries)
    mask[..., rows, rows % keys] = True
    if kind == "empty-row":
        mask[..., queries // 2, :] = False
    return mask


def _padding(shape: tuple[int, ...]) -> NDArray[np.bool_]:
    *_, keys = shape
    sequences = int(np.prod(shape[:-2], dtype=np.int64))
    hidden = (1 + np.arange(sequences)) % keys  # at least one key stays
    mask = np.arange(keys)[None, None, :] < (keys - hidden)[:, None, None]
    return np.broadcast_to(mask, (sequences, *shape[-2:])).reshape(shape).copy()
