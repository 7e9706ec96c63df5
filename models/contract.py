"""What an attention module takes and gives, as data: no torch is needed to read it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, get_args

import msgspec

Role = Literal["query", "key", "value", "tokens", "mask", "data", "weights", "output"]
MaskKind = Literal["all", "causal", "padding", "left-padding", "holes", "empty-row"]
EmptyRows = Literal["nan", "zero", "mean", "never", "unknown"]
Causal = Literal["top-left", "bottom-right", "no", "unknown"]


DTYPES = frozenset(
    {"float", "bool", "float16", "float32", "float64", "bfloat16"}
    | {f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)}
)


def _refuse_unknown(where: str, kind: str, given: tuple[str, ...], allowed: Any) -> None:
    """Refuse a word that is none of a Literal's.

    Raises:
        ValueError: it lists those there are.
    """
    unknown = [word for word in given if word not in get_args(allowed)]
    if unknown:
        raise ValueError(f"{where}: unknown {kind} {unknown[0]!r}; there are {', '.join(get_args(allowed))}")


class TensorSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One input or output: its name, dtype and axes.

    Attributes:
        name: the name in the ONNX file and in `forward`.
        axes: one entry an axis; a string is a symbolic (dynamic) axis, an integer a fixed size.
        dtype: `float` stands for the dtype the entry is exported in; else an ONNX name such as `bool`, `int64`.
        role: how the tensor is used. It decides what test data it gets: a `query` and a `key` are
            scaled to reach a wanted logit deviation, a `value` is not, and `tokens` feed all three.
        masks: for role `mask`, the kinds that the module accepts. A boolean mask (..., queries, keys), or (batch, keys)
            for all queries alike, is true where a key may be attended; a floating one is added to the scores, 0 where
            it may and -inf where not.
        inverted: a boolean mask is true where a key may *not* be attended, as torch's `key_padding_mask`.
        below: integers are up to here, not included: what they index has that size. None: what the graph shows of it, or
            two numbers where it shows nothing; an integer of role `data` that decides which keys are attended is a mask.
        least: the smallest integer.
    """

    name: str
    axes: tuple[str | int, ...]
    dtype: str = "float"
    role: Role = "data"
    masks: tuple[MaskKind, ...] = ()
    inverted: bool = False
    below: int | None = None
    least: int = 0

    def __post_init__(self) -> None:
        """Refuse what no tensor has.

        Raises:
            ValueError: an unknown dtype, a negative size, no integer to choose from.
        """
        _refuse_unknown(self.name, "role", (self.role,), Role)
        _refuse_unknown(self.name, "mask", self.masks, MaskKind)
        if self.dtype not in DTYPES:
            raise ValueError(
                f"{self.name}: unknown dtype {self.dtype!r}; there are {', '.join(sorted(DTYPES))}"
            )
        if self.below is not None and self.below <= self.least:
            raise ValueError(f"{self.name}: no integer is below {self.below} and from {self.least} up")
        if any(isinstance(axis, int) and axis < 0 for axis in self.axes):
            raise ValueError(f"{self.name}: a negative size in {list(self.axes)}; a string is a dynamic axis")


class Contract(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a module promises, and what a verifier may therefore feed and expect.

    Attributes:
        inputs: in the order of `forward`.
        outputs: in the order returned.
        traced: size of each symbolic axis in the example that is traced. All sizes of a
            contract are distinct, so that a swapped axis cannot pass by coincidence.
        empty_rows: what a query row without any key gives: `nan`, `zero`, `mean` (of the values), `never`
            (no accepted mask can empty a row) or `unknown`.
        batch: axes that count sequences rather than tokens, beside those that are called batch.
        granularity: sizes of all other axes are multiples of it; a network that halves an image five times takes 32.
        longest: the largest size of an axis, where there is one: a table of positions has a last row.
        causal: whether outputs at a position depend on no later one, whatever mask is fed: `top-left` if query i sees the
            keys up to i, `bottom-right` if the last query sees the last key (tokens behind a cache), `no` if every query
            sees every key that no mask hides and nothing tells their order; `unknown`: nothing is promised.
        specification: the formula as an ONNX graph in text form, if the module is to be held
            against something other than the graph exported from it. Evaluated in float64.
        guessed: nobody wrote it: it is what a file or a call shows.
    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    traced: dict[str, int]
    empty_rows: EmptyRows = "unknown"
    specification: str | None = None
    batch: tuple[str, ...] = ()
    granularity: int = 1
    longest: dict[str, int] = {}
    causal: Causal = "unknown"
    guessed: bool = False

    def __post_init__(self) -> None:
        """Refuse a contract that contradicts itself.

        Raises:
            ValueError: an axis without a traced size, a size or a granularity below 1, a name used twice, masks on a
                tensor that is none.
        """
        _refuse_unknown("contract", "empty_rows", (self.empty_rows,), EmptyRows)
        _refuse_unknown("contract", "causal", (self.causal,), Causal)
        names = [spec.name for spec in (*self.inputs, *self.outputs)]
        if len(set(names)) != len(names):
            raise ValueError(f"tensor names must be distinct, got {names}")
        missing = sorted(set(self.symbolic_axes()) - set(self.traced))
        if missing:
            raise ValueError(f"traced has no size for the axes {missing}")
        if any(size < 1 for size in self.traced.values()):
            raise ValueError(f"traced sizes must be 1 or more, got {self.traced}")
        if self.granularity < 1 or any(size < 1 for size in self.longest.values()):
            raise ValueError(
                f"granularity and longest sizes must be 1 or more, got {self.granularity} and {self.longest}"
            )
        for spec in self.inputs:
            if (spec.role == "mask") != bool(spec.masks):
                raise ValueError(f"{spec.name}: role 'mask' and masks go together")

    def symbolic_axes(self) -> Iterator[str]:
        """Yield the symbolic axes of the inputs, each once, in order of first use."""
        axes = (axis for spec in self.inputs for axis in spec.axes if isinstance(axis, str))
        yield from dict.fromkeys(axes)

    def is_batch(self, axis: str) -> bool:
        """Whether an axis counts sequences rather than tokens."""
        return axis in self.batch or axis.lower().startswith(("batch", "n_batch", "bsz"))

    def mask_kinds(self) -> tuple[MaskKind, ...]:
        """Return the mask kinds accepted, `()` if the module takes no mask."""
        return tuple(kind for spec in self.inputs for kind in spec.masks)


def guess_input(
    name: str,
    axes: tuple[str | int, ...],
    dtype: str,
    *,
    below: int | None = None,
    masks: bool = False,
    least: int = 0,
) -> TensorSpec:
    """Return the spec of an input of which only name, axes and dtype are known, and how a graph uses it.

    A mask is what is known to be one, or a boolean of two axes or more that is called so; floats are taken for tokens,
    scaled to reach a wanted logit deviation; the rest is data.

    Args:
        name: of the input.
        axes: of the input.
        dtype: of the input.
        below: its integers are below this, None if that is not known.
        masks: whether it decides which keys are attended.
        least: the smallest of its integers.
    """
    called = dtype == "bool" and "mask" in name.lower()
    if ((masks and dtype != "float") or called) and len(axes) >= 2 and below is None:
        kinds: tuple[MaskKind, ...] = ("all", "padding", "left-padding", "holes")
        if len(axes) > 2:
            kinds = (*kinds[:1], "causal", *kinds[1:], "empty-row")
        return TensorSpec(name, axes, dtype, "mask", kinds)
    role: Role = "tokens" if dtype == "float" and len(axes) > 1 else "data"
    return TensorSpec(name, axes, dtype, role, below=below, least=least)
