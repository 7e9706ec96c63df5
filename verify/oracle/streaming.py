"""Softmax attention in float64 with bound, deviation and scale direction, in memory linear in the number of keys.

The formulas are those of `attention`, the dense oracle, and of NUMERICS.md sections 1 and 2, evaluated for a panel of
query rows at a time: pass 1 writes the panel's logits and finds their maximum, pass 2 goes over them in tiles of keys
and reduces. Logits, weights and p V are float64. The magnitudes (W, p |V|, p V^2) only enter a bound, and sigma and
the direction are wanted to a few digits: they are formed in float32, those of the bound inflated by what float32 may
have lost of a sum of positive terms. Where that would loosen the bound, p V^2 of saturated rows, and for operands
that float32 cannot hold, poisoned keys for example, float64 takes its place.

Two differences from the dense oracle: a row under one huge finite number is uniform whatever the policy of empty rows,
and there is no bound where the normaliser may be off by all of itself (G >= 1).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from onnx_attest.verify.arithmetic import Arithmetic, gamma
from onnx_attest.verify.oracle.attention import TANH_ERROR

Array = NDArray[Any]
Floats = NDArray[np.float64]

_SECOND_ORDER = 2.0**-20  # products of W's own terms, as in the dense oracle
_CANCELLATION = 8 * 2.0**-53  # in p V^2 - o^2, evaluated in float64
_KAPPA = 0.1804  # mean square of a rounding in units of (u x)^2, x with a log-uniform mantissa (NUMERICS.md section 2)
_FUNCTION = 0.72 / _KAPPA  # mean square error of an exponential or a tanh, 0.18 (2u)^2, in units of kappa u^2
_HUGE, _ABSORBED = 2.0**60, 2.0**-54  # a mask this large leaves nothing of a score, see `bounded.add`

_PANEL_ROWS, _PANEL_SIZE, _TILE = 256, 2**20, 256
"""Rows of a panel, logits in it that may shorten it, keys of a tile: the fastest of those tried with 1 MiB of L2."""
_TAME = 2.0**16
"""Queries and keys up to here have their products, and squares of those over u^2, in float32's range."""
_SPREAD = 2.0**60
"""Values of a column whose sizes differ by more would underflow in float32 when they are scaled together."""
_LINEAR, _QUADRATIC, _UNKNOWN = 4e-4, 0.04, float(np.log(2.0))
"""Up to the first, W stands for e^W - 1 within 2e-4; up to the second, W + W^2 / 2 within 3e-4 and a little more; from
the third on, a key is not known to a factor of two."""
_SHOWS = 3e-4
"""The share of a bound that float32 may add to it through p V^2 before that is formed anew in float64."""
_SLACK = 48
"""Roundings that a magnitude undergoes beside its inner product: casts of both factors and a dozen steps."""


@dataclass(frozen=True, slots=True, eq=False)
class OperandErrors:
    """Absolute errors that the operands of `attend` carry, each broadcastable to its operand; None is exact."""

    q: Floats | None = None
    k: Floats | None = None
    v: Floats | None = None
    bias: Floats | None = None
    scale: float = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class Attended:
    """What is known of an attention's output; float64.

    Attributes:
        value: o, (..., queries, d_v).
        bound: tau: no correct runtime is farther from o, (..., queries, d_v); inf where nothing is known.
        deviation: sigma of a correct runtime's error: sharp, not a bound, (..., queries, d_v).
        scale_direction: d o / d log(scale) = Cov_p(s q.K, V), (..., queries, d_v); exact to float32's accuracy
            relative to sum_j p_j |l_j - m||V_j|.
        log_sum_exp: log sum_j e^l_j, (..., queries); -inf in an empty row.
        top: max_j l_j, (..., queries); -inf in an empty row.
    """

    value: Floats
    bound: Floats
    deviation: Floats
    scale_direction: Floats
    log_sum_exp: Floats
    top: Floats


def attend(
    q: Floats,
    k: Floats,
    v: Floats,
    arithmetic: Arithmetic,
    *,
    scale: float,
    bias: Floats | None = None,
    allowed: NDArray[np.bool_] | None = None,
    causal: int | None = None,
    window: int | None = None,
    softcap: float = 0.0,
    empty_rows: str = "zero",
    errors: OperandErrors | None = None,
) -> Attended:
    """Return softmax(cap(scale q k^T) + bias) v with its bound, deviation and scale direction.

    Shapes: q (..., heads, queries, d), k (..., kv_heads, keys, d), v (..., kv_heads, keys, d_v), or two axes each;
    kv_heads divides heads, and query head h uses key head h // (heads / kv_heads). bias and allowed broadcast to
    (..., heads, queries, keys). cap(s) = softcap tanh(s / softcap); 0 leaves it out.

    Query i stands at position p = i + (causal or 0). With `causal`, the number of keys before the first query, it
    sees keys j <= p; with `window` only those with j > p - window. A mask of finite numbers is a bias like any
    other: a row in which one huge number hides every key has equal weights. A row with no key at all follows
    `empty_rows`: `zero`, `mean` of all values, or else NaN.

    Raises:
        ValueError: shapes that do not fit together.
    """
    if q.ndim == 2:
        whole = attend(
            q[None], k[None], v[None], arithmetic, scale=scale, bias=bias, allowed=allowed, causal=causal,
            window=window, softcap=softcap, empty_rows=empty_rows, errors=errors,
        )  # fmt: skip
        return Attended(*(getattr(whole, name)[0] for name in Attended.__slots__))
    errors = errors or OperandErrors()
    lead, (queries, d), keys = q.shape[:-2], q.shape[-2:], k.shape[-2]
    if k.shape[-1] != d or v.shape[-2] != keys or k.shape[-3] != v.shape[-3] or lead[-1] % k.shape[-3]:
        raise ValueError(f"q {q.shape}, k {k.shape} and v {v.shape} do not fit together")
    of_keys = (*lead[:-1], k.shape[-3], keys)
    full = (*lead, queries, keys)
    q_error, k_error, v_error = (
        _spread(errors.q, q.shape),
        _spread(errors.k, (*of_keys, d)),
        _spread(errors.v, (*of_keys, v.shape[-1])),
    )
    k, v = np.broadcast_to(k, (*of_keys, d)), np.broadcast_to(v, (*of_keys, v.shape[-1]))
    masks = _Masks(
        _spread(allowed, full), _spread(bias, full), _spread(errors.bias, full), causal, window, queries, keys
    )
    terms = _Terms.of(arithmetic, d, keys, scale, errors.scale, softcap, biased=bias is not None)
    result = Attended(
        *(np.empty((*lead, queries, v.shape[-1])) for _ in range(4)),
        *(np.empty((*lead, queries)) for _ in range(2)),
    )
    group = lead[-1] // k.shape[-3]
    workspace = _Workspace()
    # Overflow and NaN belong to masked garbage and to bounds that say nothing; each is dealt with where it arises.
    with np.errstate(all="ignore"):
        for index in np.ndindex(k.shape[:-2]):
            members = [(*index[:-1], index[-1] * group + member) for member in range(group)]
            tame = (
                max(1.0, abs(scale)) * max(float(np.abs(q[at]).max(initial=0.0)) for at in members) <= _TAME
            )
            head = _KeyHead.of(
                k[index],
                v[index],
                _at(k_error, index),
                _at(v_error, index),
                terms,
                workspace,
                tame=tame,
                q_error=q_error is not None,
            )
            for at in members:
                own = _Queries(q[at], _at(q_error, at), masks.of_head(at))
                into = Attended(*(getattr(result, name)[at] for name in Attended.__slots__))
                for start in range(0, queries, _panel_rows(keys)):
                    rows = slice(start, min(start + _panel_rows(keys), queries))
                    _attend_panel(own, rows, head, terms, empty_rows, workspace, into)
    return result


def _spread(array: Any, shape: tuple[int, ...]) -> Any:
    return None if array is None else np.broadcast_to(array, shape)


def _at(array: Any, index: tuple[int, ...]) -> Any:
    return None if array is None else array[index]


@dataclass(frozen=True, slots=True)
class _Terms:
    """The coefficients of W and of v, the variance of a logit, for one arithmetic; W is linear in its parts.

    W = unit (size-product + raw |s q.K| + capped |y| + stored |l| + bias eb + m - l), with y the capped score, and the
    size-product |q| . (size |K| + inherited E_K) + E_q . inherited (|K| + E_K) + constant.
    v = variance (score (s q.K)^2 + square s^2 q^2.K^2 + (m - l)^2 + of_biased l^2 + _FUNCTION); a cap multiplies the
    first two by its slope squared and adds of_capped y^2 + _FUNCTION cap^2.
    """

    arithmetic: Arithmetic
    scale: float
    softcap: float
    biased: bool
    unit: float
    size: float
    inherited: float
    raw: float
    capped: float
    stored: float
    bias: float
    constant: float
    floor: float
    variance: float
    score: float
    square: float
    of_capped: float
    of_biased: float

    @classmethod
    def of(
        cls,
        a: Arithmetic,
        d: int,
        keys: int,
        scale: float,
        scale_error: float,
        softcap: float,
        *,
        biased: bool,
    ) -> _Terms:
        """Collect what `bounded.matmul`, `multiply`, `add` and the dense `attention` do to a logit, in their order."""
        u = max(a.u, a.u_s)
        product = gamma(d + 1, a.u_acc) + 2 * a.u_in * (1 + a.u_in)
        factor = (1 + a.c_s * u) * (abs(scale) + scale_error)
        size = factor * product + a.c_s * u * abs(scale)
        inherited = factor * (1 + product + a.u_s)
        of_value = factor * a.u_s + (1 + a.c_s * u) * scale_error
        constant = factor * (d + 1) * a.omega + a.omega
        if scale:
            raw = of_value / abs(scale) + a.c_s * u
        else:  # |q.K| cannot be had from s q.K, but |q||K| is at least as large
            size, raw = size + of_value, 0.0
        parts = np.array([size, inherited, raw, 0.0, constant, 0.0])
        if softcap:
            parts *= 1 + u
            parts[3] = 2 * a.u * (1 + u) + u
            parts[4] += TANH_ERROR * a.u * abs(softcap) * (1 + u) + a.omega
        if biased:
            parts *= 1 + u
            parts[4] += a.omega
            parts[5] = 1 + u
        rescalings = -(-keys // a.key_block)
        floor = a.c_exp * a.u + rescalings * (a.c_exp + 1) * a.u
        per = a.u + a.u_s
        ratio, stored, cast = (a.u_acc / a.u) ** 2, (a.u_s / a.u) ** 2, (a.u_in / a.u) ** 2
        size, inherited, raw, capped, constant, of_bias = (float(part) for part in parts / per)
        return cls(
            arithmetic=a, scale=scale, softcap=softcap, biased=biased,
            unit=per * (1 + max(a.u_s, 2 * a.u_in) + _SECOND_ORDER),
            size=size, inherited=inherited, raw=raw, capped=capped, stored=u / per if biased else 0.0, bias=of_bias,
            constant=constant + floor / per, floor=floor / per,
            variance=_KAPPA * a.u**2, score=ratio * (d + 1) / 3 + 2 * stored + 1, square=ratio * (d + 1) / 6 + 2 * (cast + stored),
            of_capped=1 + stored, of_biased=1 + stored if biased else 0.0,
        )  # fmt: skip

    @property
    def plain(self) -> bool:
        """Whether a logit is a scaled product and nothing else."""
        return not self.biased and not self.softcap

    @property
    def known(self) -> bool:
        """Whether there is a bound on a logit at all; a product in half precision may stall."""
        return bool(np.isfinite(self.size))


@dataclass(frozen=True, slots=True, eq=False)
class _Masks:
    """What hides keys from queries; `allowed`, `bias` and its error are views of the full shape, not copies."""

    allowed: Any
    bias: Any
    bias_error: Any
    causal: int | None
    window: int | None
    queries: int
    keys: int

    def of_head(self, index: tuple[int, ...]) -> _Masks:
        """Return the masks of one head."""
        return replace(
            self,
            allowed=_at(self.allowed, index),
            bias=_at(self.bias, index),
            bias_error=_at(self.bias_error, index),
        )

    def span(self, start: int, stop: int) -> tuple[int, int]:
        """Return the range of keys that some query of start..stop sees."""
        position = self.causal or 0
        low = 0 if self.window is None else max(0, start + position - self.window + 1)
        high = self.keys if self.causal is None else min(self.keys, stop + position)
        return min(low, self.keys), max(high, min(low, self.keys))

    def clear(self, start: int, stop: int) -> tuple[int, int]:
        """Return a range of keys that each query of start..stop sees, and to which nothing is added."""
        if self.allowed is not None or self.bias is not None:
            return 0, 0
        position = self.causal or 0
        low = 0 if self.window is None else stop + position - self.window
        return low, self.keys if self.causal is None else start + position + 1

    def hide(self, logits: Floats, start: int, low: int) -> None:
        """Write -inf over the logits, of queries start.. and keys low.., that are hidden."""
        rows, columns = logits.shape
        if self.allowed is not None:
            seen = self.allowed[start : start + rows, low : low + columns]
            np.copyto(logits, -np.inf, where=np.logical_not(seen))
        position = (start + (self.causal or 0) + np.arange(rows))[:, None]
        if self.causal is not None:
            first = max(0, int(position[0, 0]) + 1 - low)
            later = logits[:, first:]
            np.copyto(later, -np.inf, where=low + first + np.arange(later.shape[1]) > position)
        if self.window is not None:
            last = max(0, int(position[-1, 0]) - self.window + 1 - low)
            earlier = logits[:, :last]
            np.copyto(earlier, -np.inf, where=low + np.arange(earlier.shape[1]) <= position - self.window)


@dataclass(frozen=True, slots=True, eq=False)
class _KeyHead:
    """Keys and values of one head, as the products want them; shared by the queries of a group.

    Each column of V is scaled by a power of two so that it is at most 1: nothing overflows when it is squared.
    """

    keys: Floats  # (keys, d)
    sizes: Array  # (keys, inner), the right factor of W's size-product
    squares: Array  # (keys, d + 1), of q^2.K^2
    values: Floats  # (keys, 3 d_v): V, |V| and V^2
    short: Array  # the same, for magnitudes
    value_error: Floats | None
    factor: Floats  # (d_v,): the power of two that V was divided by
    finite: bool  # else a hidden value has a part in the output: 0 * NaN is NaN
    high: Floats
    low: Floats
    largest: Floats
    largest_error: Floats | float
    key_norm: float
    size_norm: float
    dtype: DTypeLike

    @classmethod
    def of(
        cls,
        k: Floats,
        v: Floats,
        k_error: Any,
        v_error: Any,
        terms: _Terms,
        work: _Workspace,
        *,
        tame: bool,
        q_error: bool,
    ) -> _KeyHead:
        (keys, d), d_v = k.shape, v.shape[1]
        largest = np.maximum(v.max(0, initial=0.0), -v.min(0, initial=0.0))
        # In float64 any power of two up to these is a factor; none of them is beyond its range.
        exponent = np.clip(np.frexp(np.where(np.isfinite(largest), largest, 0.0))[1], -1000, 1000)
        values = work.take("values", (keys, 3 * d_v))
        scaled = np.multiply(v, np.ldexp(1.0, -exponent), out=values[:, :d_v])
        absolute = np.abs(scaled, out=values[:, d_v : 2 * d_v])
        np.multiply(scaled, scaled, out=values[:, 2 * d_v :])
        largest, size = absolute.max(0, initial=0.0), np.abs(k, out=work.take("size", k.shape))
        smallest = np.where(absolute > 0, absolute, 1.0).min(0, initial=1.0)
        tame = tame and bool(np.all(largest <= _SPREAD * smallest) and size.max(initial=0.0) <= _TAME)
        dtype = np.float32 if tame and np.all((largest > 2.0**-10) | (largest == 0)) else np.float64
        sizes = work.take("sizes", (keys, (2 if q_error else 1) * d + 1), dtype)
        np.multiply(size, terms.size if terms.known else 0.0, out=sizes[:, :d], casting="same_kind")
        if k_error is not None:
            sizes[:, :d] += terms.inherited * k_error
        if q_error:
            sizes[:, d:-1] = terms.inherited * (size + (0.0 if k_error is None else k_error))
        sizes[:, -1] = terms.constant
        squares = work.take("squares", (keys, d + 1), dtype)
        np.multiply(size, size, out=size)
        np.multiply(size, terms.square, out=squares[:, :d], casting="same_kind")
        squares[:, -1] = 1.0
        short = work.take("short", values.shape, dtype)
        np.copyto(short, values, casting="same_kind")
        own_error = None if v_error is None else v_error * np.ldexp(1.0, -exponent)
        return cls(
            keys=k,
            sizes=sizes,
            squares=squares,
            values=values,
            short=short,
            value_error=own_error,
            factor=np.ldexp(1.0, exponent),
            finite=bool(np.all(np.isfinite(largest))),
            high=scaled.max(0, initial=-np.inf),
            low=scaled.min(0, initial=np.inf),
            largest=largest,
            largest_error=0.0 if own_error is None else own_error.max(0, initial=0.0),
            key_norm=float(np.sqrt(size.sum(1).max(initial=0.0))),
            size_norm=float(np.sqrt(_dot(sizes, sizes).max(initial=0.0))),
            dtype=dtype,
        )


@dataclass(frozen=True, slots=True, eq=False)
class _Queries:
    """One head of queries, the error they carry, and what hides keys from them."""

    q: Floats
    error: Any
    masks: _Masks


@dataclass(slots=True)
class _Workspace:
    """Arrays that are used again: a fresh large array costs more in page faults than what is computed in it."""

    flat: dict[tuple[str, Any], Array] = field(default_factory=dict)

    def take(self, name: str, shape: tuple[int, ...], dtype: DTypeLike = np.float64) -> Array:
        """Return an array of this shape with anything in it; the next of this name overwrites it."""
        key, size = (name, dtype), math.prod(shape)
        if key not in self.flat or self.flat[key].size < size:
            self.flat[key] = np.empty(size, dtype)
        return self.flat[key][:size].reshape(shape)


def _panel_rows(keys: int) -> int:
    return max(32, min(_PANEL_ROWS, _PANEL_SIZE // max(keys, 1)))


@dataclass(slots=True, eq=False)
class _Panel:
    """The logits of some query rows, and what a tile of them needs; rows are (rows, 1)."""

    logits: Floats  # (rows, width)
    raw: Array | None  # s q.K, where that is not the logit itself
    bias: Any
    bias_error: Any
    huge: bool  # whether some bias may absorb a score
    first: int  # key of the first column
    clear: tuple[int, int]  # columns in which no key is hidden
    empty: NDArray[np.bool_]  # (rows,): rows without a key
    top: Floats  # finite: 0 in an empty row
    top_short: Array
    keys: Floats  # n_eff
    sizes: Array  # left factor of W's size-product
    squares: Array  # left factor of q^2.K^2 and of what v has for the whole row
    shift: Array  # of v's polynomial in m - l
    extra: Array  # kappa (u_acc^2 (n + 1) / 6 + 2 u_p^2) over v's unit, of p^2 V^2
    most: float  # no W of a plain panel is larger, in units of W
    widest: float  # at this distance below the top a key has no weight, whatever its error
    spread_unit: float  # v = this times what the tiles compute
    unit: float  # W, likewise


def _panel(queries: _Queries, rows: slice, head: _KeyHead, terms: _Terms, work: _Workspace) -> _Panel:
    """Write the logits of a panel of query rows and find their maxima: pass 1."""
    masks, q = queries.masks, queries.q[rows]
    low, high = masks.span(rows.start, rows.stop) if head.finite else (0, masks.keys)
    part, scaled = np.s_[rows, low:high], q * terms.scale
    logits, raw, huge = _logits(scaled, head.keys[low:high], masks, part, head.dtype, terms, work)
    largest = float(np.sqrt((scaled * scaled).sum(1).max(initial=0.0))) * head.key_norm
    top = logits.max(1, keepdims=True, initial=-np.inf)
    clear = tuple(min(max(edge - low, 0), high - low) for edge in masks.clear(rows.start, rows.stop))
    if clear == (0, high - low) and largest < -terms.arithmetic.masked_below:
        keys = np.full_like(top, high - low)
    else:
        keys = (logits >= terms.arithmetic.masked_below).sum(1, keepdims=True).astype(float)
    keys[keys == 0] = masks.keys  # a row masked with finite numbers is summed whole
    empty = np.isneginf(top)
    top[empty] = 0.0
    sizes = np.abs(q)
    if queries.error is not None:
        sizes = np.concatenate((sizes, queries.error[rows]), axis=1)
    sizes = np.concatenate((sizes, np.ones_like(top)), axis=1)
    sizes, unit = sizes.astype(head.dtype), terms.unit
    unit *= 1 + (sizes.shape[1] + _SLACK) * float(np.finfo(head.dtype).eps) / 2
    most = float(np.sqrt((sizes * sizes).sum(1).max(initial=0.0))) * head.size_norm
    most += (terms.raw + terms.capped + 2 * terms.stored + 2) * largest
    if masks.bias_error is not None:
        most += terms.bias * float(masks.bias_error[part].max(initial=0.0))
    a, n_1 = terms.arithmetic, keys + 1
    ratio = (a.u_acc / a.u) ** 2
    score = terms.score + 1 if terms.plain else 1.0
    of_row = _FUNCTION + (terms.score * top * top if terms.plain else 0.0 * top)
    squares = np.concatenate((scaled * scaled, of_row), axis=1) / score
    return _Panel(
        logits=logits, raw=raw, first=low, clear=(clear[0], clear[1]), empty=empty[:, 0],
        top=top, top_short=top.astype(head.dtype), keys=keys,
        bias=None if masks.bias is None else masks.bias[part],
        bias_error=None if masks.bias_error is None else masks.bias_error[part],
        huge=huge, sizes=sizes, squares=squares.astype(head.dtype),
        shift=(2 * terms.score / score * top).astype(head.dtype),
        extra=((ratio * n_1 / 6 + 2 * (a.u_p / a.u) ** 2) / score).astype(head.dtype),
        most=most, unit=unit, spread_unit=terms.variance * score,
        # Of the distance itself, W counts less than a quarter. Finite, so that -inf is beyond it.
        widest=min(1e300, 1.5 * (1000 + unit * (most + terms.stored * float(np.abs(top).max(initial=0.0))))),
    )  # fmt: skip


def _logits(
    scaled: Floats, keys: Floats, masks: _Masks, part: tuple[slice, slice], dtype: DTypeLike, terms: _Terms,
    work: _Workspace,
) -> tuple[Floats, Array | None, bool]:  # fmt: skip
    """Return a panel's logits, s q.K where that is something else, and whether a bias may absorb some of it."""
    shape, raw, huge = (len(scaled), len(keys)), None, False
    logits = np.matmul(scaled, keys.T, out=work.take("logits", shape))
    if not terms.plain:
        raw = work.take("raw", shape, dtype)
        np.copyto(raw, logits, casting="same_kind")
    if terms.softcap:
        logits /= terms.softcap
        np.tanh(logits, out=logits)
        logits *= terms.softcap
    if masks.bias is not None:
        logits += masks.bias[part]
        # so written that a NaN counts as huge: it only costs time
        huge = not (logits.min(initial=0.0) > _HUGE / -2 and logits.max(initial=0.0) < _HUGE / 2)
    masks.hide(logits, part[0].start, part[1].start)
    return logits, raw, huge


@dataclass(slots=True, eq=False)
class _Sums:
    """Sums over the keys of a panel, weights not yet divided by their total; float64."""

    total: Floats  # of P = e^(l - m), (rows, 1); so are the next six
    theta: Floats  # P theta
    theta_squared: Floats  # P theta^2, of keys known to a factor of two
    unknown: Floats  # P theta of the others
    score: Floats  # P l', l' up to a constant of the row
    squared: Floats  # P^2
    spread: Floats  # P^2 v
    magnitudes: Floats  # P (|V|, V^2), (rows, 2 d_v)
    values: Floats  # P V, (rows, d_v); so are the next four
    of_scores: Floats  # P l' V
    of_spread: Floats  # P^2 v V
    of_squares: Floats  # P^2 (v + extra) V^2
    inherited: Floats  # P (1 + theta) E_V

    @property
    def absolute(self) -> Floats:
        """P |V|."""
        return self.magnitudes[:, : self.values.shape[1]]

    @property
    def squares(self) -> Floats:
        """P V^2."""
        return self.magnitudes[:, self.values.shape[1] :]

    @classmethod
    def zero(cls, rows: int, d_v: int) -> _Sums:
        """Return sums of nothing."""
        widths = (1,) * 7 + (2 * d_v,) + (d_v,) * 5
        return cls(*(np.zeros((rows, width)) for width in widths))


def _attend_panel(
    queries: _Queries,
    rows: slice,
    head: _KeyHead,
    terms: _Terms,
    empty_rows: str,
    work: _Workspace,
    into: Attended,
) -> None:
    """Write the rows of one head's result."""
    panel = _panel(queries, rows, head, terms, work)
    count, width = panel.logits.shape
    sums = _Sums.zero(count, head.factor.size)
    for start in range(0, width, _TILE):
        _add_tile(sums, panel, slice(start, min(start + _TILE, width)), head, terms, work)
    empty = panel.empty
    if not terms.known:
        sums.theta[:] = np.inf
    if empty.any():
        _fill_empty(sums, panel, empty, head, terms, empty_rows)
    _finish(sums, panel, rows, head, terms, work, into)
    into.top[rows] = np.where(empty, -np.inf, panel.top[:, 0])
    into.log_sum_exp[rows] = np.where(empty, -np.inf, panel.top[:, 0] + np.log(sums.total[:, 0]))
    if empty_rows not in ("zero", "mean"):
        for array in (into.value, into.bound, into.deviation, into.scale_direction):
            array[rows][empty] = np.nan


def _add_tile(
    sums: _Sums, panel: _Panel, tile: slice, head: _KeyHead, terms: _Terms, work: _Workspace
) -> None:
    """Add a tile of keys to the sums of pass 2."""
    shape, dtype = (len(panel.logits), tile.stop - tile.start), head.dtype
    P64 = np.subtract(panel.logits[:, tile], panel.top, out=work.take("P64", shape))
    clear = panel.clear[0] <= tile.start and tile.stop <= panel.clear[1]
    gone = None if clear else _gone(P64, panel.widest, work)
    if gone is not None and head.finite and gone.all():
        return
    P, x, W, v, t = (work.take(name, shape, dtype) for name in "PxWvt")
    np.copyto(x, P64, casting="same_kind")
    np.exp(P64, out=P64)
    np.copyto(P, P64, casting="same_kind")
    at = slice(panel.first + tile.start, panel.first + tile.stop)
    d_v = head.factor.size
    sums.total += P64.sum(1, keepdims=True)
    sums.values += np.matmul(P64, head.values[at, :d_v])
    np.matmul(panel.sizes, head.sizes[at].T, out=W)
    np.matmul(panel.squares, head.squares[at].T, out=v)
    if terms.plain:
        slope = x
        _plain_exponent(W, v, x, t, panel, terms, gone)
    else:
        slope = _masked_exponent(W, v, x, t, tile, panel, terms, work, gone)
    P_theta, unit = _add_theta(sums, P, P64, W, t, tile, panel, gone is None and terms.plain)
    if head.value_error is not None:
        sums.inherited += np.matmul(P64 + unit * P_theta, head.value_error[at])
    weighted = work.take("weighted", (2, *shape), dtype)
    np.multiply(P, slope, out=weighted[0])
    np.multiply(P, P, out=t)
    np.multiply(t, v, out=weighted[1])
    sums.score += _dot(P, slope)
    sums.squared += _dot(P, P)
    sums.spread += _dot(t, v)
    t *= panel.extra
    t += weighted[1]
    both = np.matmul(weighted.reshape(-1, shape[1]), head.short[at, :d_v])
    sums.of_scores += both[: shape[0]]
    sums.of_spread += both[shape[0] :]
    sums.of_squares += np.matmul(t, head.short[at, 2 * d_v :])
    sums.magnitudes += np.matmul(P, head.short[at, d_v:])


def _gone(x: Floats, widest: float, work: _Workspace) -> NDArray[np.bool_] | None:
    """Return which keys have no weight, hidden ones among them; None if there are none."""
    gone = np.less(x, -widest, out=work.take("gone", x.shape, np.bool_))
    return gone if gone.any() else None


def _dot(a: Array, b: Array) -> Array:
    return np.asarray(np.vecdot(a, b))[:, None]


def _plain_exponent(
    W: Array, v: Array, x: Array, t: Array, panel: _Panel, terms: _Terms, gone: NDArray[np.bool_] | None
) -> None:
    """Add to W and v what they have beside their products, where l = s q.K: x is l - m, and t is overwritten.

    In v, score l^2 + (l - m)^2 is a polynomial in l - m whose constant is in the product already.
    """
    if gone is not None:
        for array in (x, W, v):
            np.copyto(array, 0.0, where=gone)
    np.add(x, panel.top_short, out=t)
    np.abs(t, out=t)
    t *= terms.raw
    W += t
    W -= x
    np.add(x, panel.shift, out=t)
    t *= x
    v += t


def _masked_exponent(
    W: Array, v: Array, x: Array, t: Array, tile: slice, panel: _Panel, terms: _Terms, work: _Workspace,
    gone: NDArray[np.bool_] | None,
) -> Array:  # fmt: skip
    """Do the same where a cap or a bias comes in between; return d l / d log(scale)."""
    assert panel.raw is not None
    raw = panel.raw[:, tile]
    slope = work.take("slope", x.shape, x.dtype)
    np.copyto(slope, raw)
    np.abs(raw, out=t)
    t *= terms.raw
    W += t
    np.multiply(raw, raw, out=t)
    t *= terms.score
    v += t
    if terms.softcap:
        bent = np.tanh(raw / terms.softcap)
        capped = terms.softcap * bent
        steepness = 1 - bent * bent
        slope *= steepness
        W += terms.capped * np.abs(capped)
        v -= _FUNCTION
        v *= steepness * steepness
        v += terms.of_capped * capped * capped + _FUNCTION * (1 + terms.softcap**2)
    np.multiply(x, x, out=t)
    v += t
    if panel.bias is not None:
        _add_bias(W, v, slope, np.add(x, panel.top_short, out=t), tile, panel, terms)
    W -= x
    if gone is not None:
        for array in (x, W, v, slope):
            np.copyto(array, 0.0, where=gone)
    return slope


def _add_bias(
    W: Array, v: Array, slope: Array, logit: Array, tile: slice, panel: _Panel, terms: _Terms
) -> None:
    """Add the error of adding a bias; one so large that it absorbs the score leaves no error but its own."""
    absorbed = None
    if panel.huge:
        size = np.abs(panel.bias[:, tile])
        absorbed = (size > _HUGE) & np.isfinite(size)
        absorbed &= np.abs(slope) + panel.unit * W < _ABSORBED * size
        if panel.bias_error is not None:
            absorbed &= panel.bias_error[:, tile] == 0
    if panel.bias_error is not None:
        W += (terms.bias * panel.bias_error[:, tile]).astype(W.dtype)
    np.abs(logit, out=logit)
    if terms.stored != 1:
        W += terms.stored * logit
    else:
        W += logit
    logit *= logit
    logit *= terms.of_biased
    v += logit
    if absorbed is not None:
        W[absorbed], v[absorbed], slope[absorbed] = terms.floor, _FUNCTION, 0.0


def _add_theta(
    sums: _Sums, P: Array, P64: Floats, W: Array, t: Array, tile: slice, panel: _Panel, plain: bool
) -> tuple[Array, float]:
    """Add theta = e^W - 1 to the sums, from W in its units, which is overwritten; return P theta and its unit."""
    most = panel.unit * panel.most if plain else np.inf
    if not most <= _LINEAR:
        most = panel.unit * float(W.max(initial=0.0))
    if not most < _UNKNOWN:
        x = panel.logits[:, tile] - panel.top
        return _add_unknown(sums, P64, x, panel.unit * W.astype(float)), 1.0
    unit = _exponential_less_one(W, t, panel.unit, most)
    summed = 1 + (W.shape[1] + _SLACK) * float(np.finfo(W.dtype).eps) / 2
    np.multiply(P, W, out=t)
    sums.theta += summed * unit * _dot(P, W)
    sums.theta_squared += summed * unit * unit * _dot(t, W)
    return t, unit


def _exponential_less_one(W: Array, t: Array, unit: float, most: float) -> float:
    """Replace unit W, at most `most`, by e^(unit W) - 1 in units that are returned; t is overwritten."""
    if most <= _LINEAR:
        return unit * (1 + most / 2 + most * most)
    if most <= _QUADRATIC:
        np.multiply(W, unit * (1 / 2 + most / 6 + most * most / 20), out=t)
        t += 1
        W *= t
        return unit
    # Pade's (2, 2) of e^(W/2) = 1 + f, f = h / (1 - h / 2 + h^2 / 12) with h = W / 2, lacks at most h^5 / 350;
    # the result is f (f + 2).
    W *= unit / 2
    np.multiply(W, 1 / 12, out=t)
    t -= 0.5
    t *= W
    t += 1
    W /= t
    np.add(W, 2, out=t)
    W *= t
    return 1 + most**4 / 2800


def _add_unknown(sums: _Sums, P: Floats, x: Floats, W: Floats) -> Floats:
    """Do the same where some weight is not known to a factor of two, in float64 and from the exponents."""
    theta = np.expm1(W)
    P_theta = np.where(P > 0, P * theta, np.exp(x + W) - P)
    known = theta <= 1
    sums.theta += P_theta.sum(1, keepdims=True)
    sums.theta_squared += np.where(known, P_theta * theta, 0.0).sum(1, keepdims=True)
    sums.unknown += np.where(known, 0.0, P_theta).sum(1, keepdims=True)
    return P_theta


def _fill_empty(
    sums: _Sums, panel: _Panel, empty: NDArray[np.bool_], head: _KeyHead, terms: _Terms, empty_rows: str
) -> None:
    """Give rows without a key the sums of equal weights, or of one weight of zero."""
    sums.total[empty], sums.theta[empty] = 1.0, 0.0
    if empty_rows != "mean":
        return
    keys, theta = len(head.values), terms.arithmetic.c_exp * terms.arithmetic.u
    sums.total[empty] = sums.squared[empty] = keys
    sums.theta[empty], sums.theta_squared[empty] = keys * theta, keys * theta * theta
    d_v, unit = head.factor.size, terms.variance * _FUNCTION / panel.spread_unit
    whole = head.values.sum(0)
    sums.values[empty], sums.magnitudes[empty] = whole[:d_v], whole[d_v:]
    sums.spread[empty], sums.of_spread[empty] = keys * unit, unit * whole[:d_v]
    sums.of_squares[empty] = (unit + panel.extra[empty]) * whole[2 * d_v :]
    if head.value_error is not None:
        sums.inherited[empty] = (1 + theta) * head.value_error.sum(0)


def _finish(
    sums: _Sums, panel: _Panel, rows: slice, head: _KeyHead, terms: _Terms, work: _Workspace, into: Attended
) -> None:
    """Write value, bound, deviation and direction from the sums."""
    o = sums.values / sums.total
    bound = _bound(sums, panel, o, head, terms, work)
    np.multiply(o, head.factor, out=into.value[rows])
    into.bound[rows] = _output_error(bound, o, head, terms)
    into.deviation[rows] = _deviation(sums, panel, o, head, terms)
    direction = sums.score * o
    np.subtract(sums.of_scores, direction, out=direction)
    np.multiply(direction, head.factor / sums.total, out=into.scale_direction[rows])


def _bound(sums: _Sums, panel: _Panel, o: Floats, head: _KeyHead, terms: _Terms, work: _Workspace) -> Floats:
    """Return the bound before the output is stored, as the dense `weighted_sum` has it, for scaled values."""
    a, S, count = terms.arithmetic, sums.total, len(head.values)
    roundings = (panel.keys - (-count // a.key_block) + 2) * a.u_acc
    G = np.where(roundings < 1, roundings / (1 - roundings), np.inf)
    mean, cast = sums.theta / S, 2 * a.u_p * (1 + a.u_p)
    lost, flushed = _lost(head), np.where(sums.squared > 0, count * _smallest(head) * head.largest, 0.0)
    rest = sums.absolute * ((G * (1 + mean) + cast) * (1 + lost) / S)
    rest += (G * (1 + mean) + cast) * flushed
    rest += G * (1 + mean) * np.abs(o)
    if head.value_error is not None:
        rest += sums.inherited / S * (1 + G) * (1 + lost)
    if sums.unknown.any():
        reach = np.maximum(head.high - o, o - head.low)
        rest += np.where(sums.unknown > 0, sums.unknown / S * reach, 0.0) * (1 + G + cast)
    N = _centred(sums, panel, o, rest / (1 + G + cast), head, work)
    N *= 1 + G + cast
    N += rest
    remaining = 1 - mean - G
    first = np.where(remaining > 0, N / remaining, np.inf)
    if np.all(first * (1 - G) <= (head.high - head.low) / 2):
        return first  # no hull is smaller
    reach = np.maximum(head.high - o, o - head.low) + head.largest_error
    hull = (reach + (2 * G + 2 * a.u_p) * head.largest) / (1 - G)
    return np.fmin(first, np.where(G < 1, hull, np.inf))


def _lost(head: _KeyHead) -> float:
    """Return the relative error of a sum of positive magnitudes over a tile."""
    return (min(len(head.values), _TILE) + _SLACK) * float(np.finfo(head.dtype).eps) / 2


def _smallest(head: _KeyHead) -> float:
    return float(np.finfo(head.dtype).smallest_subnormal)


def _centred(sums: _Sums, panel: _Panel, o: Floats, rest: Floats, head: _KeyHead, work: _Workspace) -> Floats:
    """Return sqrt(sum p theta^2 (p V^2 - o^2)), from p V^2 in float32 unless that would show beside the rest.

    Where softmax saturates, p V^2 is almost o^2, and what float32 may have lost of it is all that is left.
    """
    S, lost = sums.total, _lost(head) + _CANCELLATION
    theta_squared, o_squared = sums.theta_squared / S, o * o
    second = sums.squares * (1 / S)
    variance = np.maximum(second - o_squared, 0.0)
    second *= lost
    second += len(head.values) * _smallest(head)
    variance += second
    result: Floats = np.sqrt(np.multiply(variance, theta_squared, out=variance), out=variance)
    second *= theta_squared * (2 / _SHOWS)
    rest += result
    rest *= result
    if np.all(second <= rest):
        return result
    second = np.where(panel.empty[:, None], sums.squares, _exact_squares(panel, head, work)) / S
    variance = np.maximum(second - o_squared, 0.0) + _CANCELLATION * second
    return np.asarray(np.sqrt(variance * theta_squared))


def _exact_squares(panel: _Panel, head: _KeyHead, work: _Workspace) -> Floats:
    """Return P V^2 in float64."""
    d_v = head.factor.size
    total = np.zeros((len(panel.logits), d_v))
    for start in range(0, panel.logits.shape[1], _TILE):
        logits = panel.logits[:, start : start + _TILE]
        P = np.subtract(logits, panel.top, out=work.take("P64", logits.shape))
        np.exp(P, out=P)
        first = panel.first + start
        total += np.matmul(P, head.values[first : first + P.shape[1], 2 * d_v :])
    return total


def _output_error(bound: Floats, o: Floats, head: _KeyHead, terms: _Terms) -> Floats:
    a, keys = terms.arithmetic, len(head.values)
    stored = a.c_o * a.u_out
    # A weight that is flushed, and a product that is: at most keys of each.
    bound = bound * (1 + stored)
    bound += (stored + keys * a.omega) * np.abs(o)
    bound += keys * a.omega * head.largest
    bound *= head.factor
    bound += a.omega * (keys + 2)
    return bound


def _deviation(sums: _Sums, panel: _Panel, o: Floats, head: _KeyHead, terms: _Terms) -> Floats:
    """Return sigma: the weights' errors, the two sums' own, the casts of weights and output."""
    a, S2 = terms.arithmetic, sums.total * sums.total
    unit = panel.spread_unit / S2
    own = _KAPPA * a.u_acc**2 * (panel.keys + 1) * (2 / 3 + sums.squared / S2 / 6) + 2 * _KAPPA * a.u_out**2
    # (spread o^2 - 2 o of_spread + of_squares) unit + own o^2, in this order for fewer passes
    square = o * (sums.spread * unit + own)
    square -= sums.of_spread * (2 * unit)
    square *= o
    square += sums.of_squares * unit
    np.maximum(square, 0.0, out=square)
    deviation = np.sqrt(square, out=square)
    deviation *= head.factor
    if terms.arithmetic.eta > 1e-160:  # else its square is lost, and so is it beside anything but a zero
        np.multiply(deviation, deviation, out=deviation)
        deviation += a.eta**2
        np.sqrt(deviation, out=deviation)
    return np.maximum(deviation, a.eta, out=deviation)
