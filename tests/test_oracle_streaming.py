"""The streaming oracle of attention: what the dense one says, in memory linear in the keys; and sigma, and direction."""

from __future__ import annotations

import tracemalloc
from dataclasses import dataclass, field, replace
from typing import Any

import attention_arrays as arrays
import mpmath
import numpy as np
import onnx
import pytest

from onnx_attest.verify.arithmetic import PROFILES
from onnx_attest.verify.oracle import attention as dense
from onnx_attest.verify.oracle.bounded import Bounded
from onnx_attest.verify.oracle.graph import GraphOracle
from onnx_attest.verify.oracle.ops import attention as operators
from onnx_attest.verify.oracle.streaming import OperandErrors, attend, scores, tiles

FP32 = PROFILES["fp32"]
FLOAT64_ROUNDING = 1e3 * 2.0**-53  # of values, some hundred operations deep
LOOSER = 1e-3  # how much larger than the dense bound, relative: what float32 magnitudes may cost
LOOSER_AT_THE_END = 3e-2  # the same where sum p theta is nearly 1: the bound divides by 1 - sum p theta
TIGHTER = 1e-7  # how much smaller: float64's own cancellation in p V^2 - o^2, under a root
LOWEST = float(np.finfo(np.float32).min)
QUERIES, KEYS = 37, 150
OUTPUTS = ["value", "bound", "deviation", "scale_direction", "log_sum_exp", "top"]


@dataclass(frozen=True)
class Form:
    """A way to call attention, with small tiles so that each has several."""

    heads: tuple[int, int] = (4, 4)
    queries: int = QUERIES
    keys: int = KEYS
    d: int = 20
    d_v: int = 12
    logit_std: float = 2.0
    mean: float = 0.0  # of the values
    options: dict[str, Any] = field(default_factory=dict)
    scale: float | None = None


def some(rows: int = QUERIES, keys: int = KEYS) -> np.ndarray:
    """A mask that hides half of the keys, and all of them from query 3."""
    mask = np.random.default_rng(1).random((rows, keys)) < 0.5
    mask[3] = False
    return mask


SLOPES = np.array([0.5, 0.1, 0.01, 2.0])[:, None, None]
ALIBI = -SLOPES * np.abs(np.arange(QUERIES)[:, None] - np.arange(KEYS))
FORMS = {
    "plain": Form(),
    "flat": Form(logit_std=0.3),
    "saturated": Form(logit_std=100.0),
    "grouped heads": Form(heads=(4, 2)),
    "causal": Form(options={"causal": 0}),
    "causal after a cache": Form(options={"causal": KEYS - QUERIES}),
    "causal before the keys": Form(options={"causal": -5}),
    "window": Form(options={"causal": 60, "window": 9}),
    "window both ways": Form(options={"window": 9}),
    "boolean mask": Form(options={"allowed": some()}),
    "padding": Form(options={"allowed": np.arange(KEYS) < 99}),
    "float mask": Form(options={"bias": np.where(some(), 0.0, -np.inf)}),
    "bias of each head": Form(options={"bias": ALIBI}),
    "causal with a bias": Form(options={"bias": ALIBI, "causal": 3}),
    "softcap": Form(options={"softcap": 3.0}),
    "softcap with a bias": Form(options={"softcap": 3.0, "bias": ALIBI}),
    "scale of one": Form(scale=1.0, logit_std=0.5),
    "scale of zero": Form(scale=0.0),
    "one query": Form(queries=1),
    "one key": Form(keys=1),
    "one feature": Form(d=1, d_v=1),
    "whole tiles": Form(queries=32, keys=128),
}


@pytest.fixture
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several panels and tiles for the few rows and keys of a test."""
    monkeypatch.setattr(tiles, "PANEL_ROWS", 32)
    monkeypatch.setattr(tiles, "TILE", 64)


def operands(form: Form, seed: int = 0) -> tuple[np.ndarray, ...]:
    q, k, v = arrays.inputs(
        batch=1, heads=form.heads[0], queries=form.queries, keys=form.keys, d=form.d, d_v=form.d_v,
        logit_std=form.logit_std, seed=seed,
    )  # fmt: skip
    return tuple(
        array.astype(float) for array in (q, k[:, : form.heads[1]], v[:, : form.heads[1]] + form.mean)
    )


def both(form, arithmetic=FP32, *, policy="zero", errors=None):
    """What the streaming and the dense oracle say; `policy` is the dense one's."""
    q, k, v = operands(form)
    scale = form.d**-0.5 if form.scale is None else form.scale
    streamed = attend(q, k, v, arithmetic, scale=scale, errors=errors, **form.options)
    errors, options = errors or OperandErrors(), dict(form.options)
    allowed = np.broadcast_to(options.pop("allowed", True), (form.queries, form.keys))
    causal, window, bias = (options.pop(name, None) for name in ("causal", "window", "bias"))
    behind = np.arange(form.queries)[:, None] + (causal or 0) - np.arange(form.keys)
    allowed = allowed & (True if causal is None else behind >= 0) & (window is None or behind < window)
    group = form.heads[0] // form.heads[1]
    repeated = [
        None if array is None else array.repeat(group, axis=1) for array in (k, v, errors.k, errors.v)
    ]
    options.setdefault("empty_rows", policy)
    with np.errstate(all="ignore"):
        whole, _ = dense.attention(
            Bounded(q, errors.q), Bounded(repeated[0], repeated[2]), Bounded(repeated[1], repeated[3]),
            arithmetic, scale=scale, scale_error=errors.scale, allowed=Bounded(allowed),
            bias=None if bias is None else Bounded(bias, errors.bias), **options,
        )  # fmt: skip
    return streamed, whole


def assert_same_bound(streamed, whole):
    # Below 0 or NaN, the dense bound says nothing: its normaliser may be off by all of itself.
    known = (whole.error > 0) & np.isfinite(whole.error)
    ratio = streamed.bound[known] / whole.error[known]
    if ratio.size:
        least, usual, most = ratio.min(), np.quantile(ratio, 0.95), ratio.max()
        assert least >= 1 - TIGHTER, least
        assert usual <= 1 + LOOSER, usual
        assert most <= 1 + LOOSER_AT_THE_END, most


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("name", FORMS)
def test_values_are_those_of_the_dense_oracle(name):
    streamed, whole = both(FORMS[name])
    np.testing.assert_allclose(streamed.value, whole.value, rtol=0, atol=FLOAT64_ROUNDING)


BOUNDED_PROFILES = [name for name in PROFILES if name != "bf16-acc"]  # beyond 125 keys it has no bound


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("profile", BOUNDED_PROFILES)
@pytest.mark.parametrize("name", FORMS)
def test_bounds_are_those_of_the_dense_oracle(name, profile):
    assert_same_bound(*both(FORMS[name], PROFILES[profile]))


@pytest.mark.parametrize("logit_std", [1.0, 100.0])
def test_bounds_are_those_of_the_dense_oracle_over_whole_tiles(logit_std):
    """Where softmax saturates, p V^2 - o^2 from float32 sums of this length would loosen the bound by a third."""
    assert_same_bound(*both(Form(heads=(1, 1), queries=40, keys=1300, d=64, d_v=64, logit_std=logit_std)))


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize(
    "errors",
    [
        OperandErrors(q=np.full((1, 4, QUERIES, 20), 1e-4)),
        OperandErrors(k=np.full((1, 2, KEYS, 20), 1e-4)),
        OperandErrors(v=np.full((1, 2, KEYS, 12), 1e-4)),
        OperandErrors(bias=np.full((QUERIES, KEYS), 1e-3)),
        OperandErrors(scale=1e-4),
        OperandErrors(q=np.full((1, 4, QUERIES, 20), 1e-2), k=np.full((1, 2, KEYS, 20), 1.0)),
    ],
    ids=["q", "k", "v", "bias", "scale", "so large that nothing is known"],
)
def test_inherited_errors_are_those_of_the_dense_oracle(errors):
    assert_same_bound(*both(Form(heads=(4, 2), options={"bias": ALIBI}), errors=errors))


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("hidden", [-1e4, -1e9, LOWEST])
@pytest.mark.parametrize("profile", ["fp32", "bf16-unfused"])
def test_finite_masks_are_biases(hidden, profile):
    form = Form(options={"bias": np.where(some(), 0.0, hidden)})
    assert_same_bound(*both(form, PROFILES[profile], policy="unknown"))


def test_row_hidden_by_one_huge_number_is_uniform():
    form = Form(options={"bias": np.where(some(), 0.0, LOWEST)})
    v = operands(form)[2]
    np.testing.assert_allclose(both(form)[0].value[..., 3, :], v.mean(-2), rtol=0, atol=FLOAT64_ROUNDING)


@pytest.mark.parametrize("policy", ["zero", "mean"])
def test_empty_rows_follow_the_policy_in_the_bound_too(policy):
    assert_same_bound(*both(Form(options={"allowed": some(), "empty_rows": policy})))


@pytest.mark.parametrize(("policy", "expected"), [("zero", 0.0), ("nan", np.nan), ("unknown", np.nan)])
def test_empty_rows_have_the_value_of_the_policy(policy, expected):
    streamed, _ = both(Form(options={"allowed": some(), "empty_rows": policy}))
    np.testing.assert_array_equal(streamed.value[..., 3, :], expected)


def test_empty_row_has_no_top_and_no_sum():
    streamed, _ = both(FORMS["boolean mask"])
    assert np.isneginf(streamed.top[..., 3]).all()
    assert np.isneginf(streamed.log_sum_exp[..., 3]).all()


def exactly(q, k, v):
    """Value and log-sum-exp of one head with 50 digits."""
    with mpmath.workdps(50):
        Q, K, V = (mpmath.matrix(array.tolist()) for array in (q, k, v))
        scores, rows, sums = Q * K.T / mpmath.sqrt(q.shape[-1]), [], []
        for i in range(scores.rows):
            e = [mpmath.exp(scores[i, j]) for j in range(scores.cols)]
            total = mpmath.fsum(e)
            sums.append(float(mpmath.log(total)))
            rows.append(
                [float(mpmath.fsum(e[j] * V[j, c] for j in range(V.rows)) / total) for c in range(V.cols)]
            )
    return np.array(rows), np.array(sums)


SMALL = {"heads": (1, 1), "queries": 5, "keys": 19, "d": 8, "d_v": 3}


@pytest.mark.parametrize("logit_std", [0.3, 3.0, 100.0])
def test_values_are_those_of_mpmath(logit_std):
    q, k, v = (array[0, 0] for array in operands(Form(**SMALL, logit_std=logit_std)))
    value, _ = exactly(q, k, v)
    assert np.abs(attend(q, k, v, FP32, scale=8**-0.5).value - value).max() <= FLOAT64_ROUNDING


def test_log_sum_exp_is_that_of_mpmath():
    q, k, v = (array[0, 0] for array in operands(Form(**SMALL)))
    np.testing.assert_allclose(
        attend(q, k, v, FP32, scale=8**-0.5).log_sum_exp, exactly(q, k, v)[1], rtol=FLOAT64_ROUNDING
    )


ORDERS = {"forwards": slice(None), "backwards": slice(None, None, -1)}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("implementation", arrays.CORRECT)
@pytest.mark.parametrize("logit_std", [0.3, 3.0, 100.0])
def test_bound_covers_float32_in_any_order(implementation, order, logit_std):
    q, k, v = (array[0, 0] for array in operands(Form(**SMALL, logit_std=logit_std)))
    keys = ORDERS[order]
    short = (array.astype(np.float32) for array in (q, k[keys], v[keys]))
    error = np.abs(arrays.CORRECT[implementation](*short) - exactly(q, k, v)[0])
    assert (error <= attend(q, k, v, FP32, scale=8**-0.5).bound).all()


def test_dropped_key_breaks_the_bound():
    q, k, v = operands(Form())
    wrong = arrays.naive(q, k[..., :-1, :], v[..., :-1, :])
    streamed = attend(q, k, v, FP32, scale=20**-0.5)
    assert (np.abs(wrong - streamed.value) > streamed.bound).mean() > 0.9


def test_logits_so_uncertain_that_an_underflowing_key_may_win():
    q = np.array([[1055768.0, 1151884.0]])
    k = np.array([[0.0, 0.0], [1905997.0, -1746956.0]])
    streamed = attend(q, k, np.array([[0.0], [1.0]]), FP32, scale=2**-0.5)
    assert streamed.value[0, 0] == 0
    assert streamed.bound[0, 0] >= 1


def test_sum_that_may_stall_has_no_bound():
    """153 roundings of 2^-8: the normaliser may be off by more than itself."""
    form = FORMS["plain"]
    assert np.isposinf(both(form, PROFILES["bf16-acc"])[0].bound).all()


def test_hidden_garbage_has_no_influence_on_the_value():
    form = Form(options={"causal": 0})
    q, k, v = operands(form)
    clean = attend(q, k, v, FP32, scale=0.2, causal=0)
    k[..., QUERIES:, :], v[..., QUERIES:, :] = 3e38, 3e38
    poisoned = attend(q, k, v, FP32, scale=0.2, causal=0)
    np.testing.assert_allclose(poisoned.value, clean.value, rtol=0, atol=FLOAT64_ROUNDING)


@pytest.mark.parametrize("size", [1e-42, 1e30])
def test_scale_of_the_values_is_that_of_the_deviation(size):
    q, k, v = operands(Form())
    one, other = (attend(q, k, v * factor, FP32, scale=0.2).deviation for factor in (1.0, size))
    np.testing.assert_allclose(other, np.maximum(one * size, FP32.eta), rtol=1e-3)


def injected(q, k, v, trials, seed):
    """Return float64 attention with each rounding of float32 injected as a random number of its size.

    Sums are sequential in a random order and round once a step, products with a fused addition.
    """
    rng, u, kappa = np.random.default_rng(seed), FP32.u, 0.1804

    def roundings(x, mean_square=kappa):
        return x * (1 + np.sqrt(mean_square) * u * rng.standard_normal(x.shape))

    def summed(terms):
        """Terms (n, trials, ...) to their sum."""
        partial = np.zeros(terms.shape[1:])
        for term in terms[rng.permutation(len(terms))]:
            partial = roundings(partial + term)
        return partial

    repeated = [np.broadcast_to(array, (trials, *array.shape)) for array in (q, k, v)]
    terms = np.moveaxis(repeated[0][:, :, None, :] * repeated[1][:, None, :, :], -1, 0)
    logits = roundings(summed(terms) * q.shape[-1] ** -0.5)
    shifted = roundings(logits - logits.max(-1, keepdims=True))
    weights = roundings(np.exp(shifted), 0.18 * 4)
    total = summed(np.moveaxis(weights, -1, 0))
    output = summed(np.moveaxis(weights[..., None] * repeated[2][:, None], 2, 0))
    return roundings(roundings(output / total[..., None]))


@pytest.mark.parametrize("logit_std", [0.5, 3.0])
def test_deviation_is_that_of_injected_roundings(logit_std):
    q, k, v = (array[0, 0] for array in operands(Form(**SMALL, logit_std=logit_std)))
    streamed = attend(q, k, v, FP32, scale=8**-0.5)
    runs = np.concatenate([injected(q, k, v, 60, seed) for seed in range(60)])
    measured = np.sqrt(((runs - streamed.value) ** 2).mean(0))
    assert abs(np.sqrt(((measured / streamed.deviation) ** 2).mean()) - 1) < 0.1


@pytest.mark.parametrize("name", ["plain", "saturated", "causal", "bias of each head", "softcap with a bias"])
def test_direction_is_the_derivative_by_the_logarithm_of_the_scale(name):
    form, step = FORMS[name], 1e-5
    q, k, v = operands(form)
    at, above, below = (
        attend(q, k, v, FP32, scale=form.d**-0.5 * factor, **form.options)
        for factor in (1.0, 1 + step, 1 - step)
    )
    difference = (above.value - below.value) / (2 * step)
    np.testing.assert_allclose(at.scale_direction, difference, rtol=0, atol=1e-5 * np.abs(difference).max())


def test_grouped_heads_are_heads_repeated():
    q, k, v = operands(Form(heads=(4, 2)))
    grouped = attend(q, k, v, FP32, scale=0.2)
    repeated = attend(q, k.repeat(2, axis=1), v.repeat(2, axis=1), FP32, scale=0.2)
    np.testing.assert_array_equal(grouped.bound, repeated.bound)


@pytest.mark.parametrize("name", OUTPUTS)
def test_tiles_leave_no_trace(name, monkeypatch):
    q, k, v = operands(Form(queries=65, keys=129))
    whole = getattr(attend(q, k, v, FP32, scale=0.2, causal=64), name)
    monkeypatch.setattr(tiles, "PANEL_ROWS", 32)
    monkeypatch.setattr(tiles, "TILE", 64)
    assert (len(list(tiles.panels(65, 129))), len(list(tiles.tiles(129)))) == (3, 3)
    cut = getattr(attend(q, k, v, FP32, scale=0.2, causal=64), name)
    np.testing.assert_allclose(cut, whole, rtol=1e-4, atol=1e-5 * np.abs(whole).max())


SHIFT_TRACE = (
    1e-4  # float32's accuracy of logits up to 24 relative to their spread, over sums of some hundred keys
)


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize(
    "options", [{}, {"causal": 3}, {"allowed": some()}], ids=["plain", "causal", "some hidden"]
)
def test_whether_weights_are_shifted_leaves_no_trace(profile, options, monkeypatch):
    form = Form(logit_std=1.0, options=options)
    q, k, v = operands(form)
    q *= scores._UNSHIFTED / (
        np.linalg.norm(q, axis=-1).max() * np.linalg.norm(k, axis=-1).max() * 0.2 * (1 + 1e-9)
    )
    unshifted = attend(q, k, v, PROFILES[profile], scale=0.2, **options)
    monkeypatch.setattr(scores, "_UNSHIFTED", -1.0)
    shifted = attend(q, k, v, PROFILES[profile], scale=0.2, **options)
    for name in OUTPUTS:
        one, other = getattr(unshifted, name), getattr(shifted, name)
        known = np.isfinite(other)
        np.testing.assert_array_equal(one[~known], other[~known])
        np.testing.assert_allclose(
            one[known],
            other[known],
            rtol=SHIFT_TRACE,
            atol=SHIFT_TRACE * np.abs(other[known]).max(initial=0.0) / 10,
        )


def test_largest_logits_without_a_shift_are_within_float32():
    """Equal keys, each at the limit: the sums of P^2 are as large as they get."""
    q, k = np.full((2, 4), 3.0), np.full((300, 4), 2.0)
    v = np.random.default_rng(0).standard_normal((300, 3))
    for name, arithmetic in PROFILES.items():
        streamed = attend(q, k, v, arithmetic, scale=1.0)
        assert streamed.top[0] == scores._UNSHIFTED
        assert np.isfinite(streamed.deviation).all(), name
        assert (streamed.deviation > 0).all(), name


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("logit_std", [0.3, 100.0])
def test_bounds_of_values_far_from_zero_are_those_of_the_dense_oracle(logit_std):
    """p V^2 is nearly o^2: it is formed anew in float64, from logits that pass 1 has not kept where they are small."""
    assert_same_bound(*both(Form(logit_std=logit_std, mean=1e3, options={"causal": 3})))


@pytest.mark.parametrize("rows", [64, 128, 130])
@pytest.mark.parametrize("lead", [(), (2,)])
def test_product_in_blocks_is_the_product(rows, lead):
    rng = np.random.default_rng(0)
    left, right = rng.standard_normal((rows, 240)), rng.standard_normal((*lead, 240, 64))
    np.testing.assert_allclose(tiles.product(left, right), left @ right, rtol=0, atol=1e3 * 2.0**-53)


def test_product_is_written_where_it_is_wanted():
    left, right, out = np.eye(128), np.arange(128.0 * 5).reshape(128, 5), np.zeros((128, 5))
    tiles.product(left, right, out=out)
    np.testing.assert_array_equal(out, right)


def test_arrays_of_a_workspace_do_not_overlap():
    work = tiles.Workspace.of_panel(queries=64, keys=100)
    arrays_taken = [
        work.take(str(i), (64, 101), dtype) for i, dtype in enumerate([np.float64, np.float32] * 9)
    ]
    for i, array in enumerate(arrays_taken):
        array.fill(i)
    assert all((array == i).all() for i, array in enumerate(arrays_taken))


def test_memory_grows_with_the_length_and_not_its_square(monkeypatch):
    monkeypatch.setattr("onnx_attest.verify.oracle.streaming.attention.one_thread_in_blas", lambda: False)

    def peak(length):
        q, k, v = operands(Form(heads=(1, 1), queries=length, keys=length, d=16, d_v=16))
        tracemalloc.start()
        try:
            attend(q, k, v, FP32, scale=0.25, causal=0)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    short, long = peak(4096), peak(8192)
    assert long < 8192**2 * 8 / 4
    assert long < 2.2 * short


SOME_ROWS = np.array([0, 1, 3, 4, 5, 17, 30, 31, 32, 33, 36])


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("name", [name for name, form in FORMS.items() if form.queries == QUERIES])
def test_some_rows_are_those_of_the_whole(name):
    """Magnitudes may be formed from other logits: whether those need a shift is a panel's largest one."""
    form = FORMS[name]
    q, k, v = operands(form)
    scale = form.d**-0.5 if form.scale is None else form.scale
    whole = attend(q, k, v, FP32, scale=scale, **form.options)
    options = dict(form.options)
    for mask in ("allowed", "bias"):
        if mask in options and options[mask].ndim > 1:
            options[mask] = options[mask][..., SOME_ROWS, :]
    some_rows = attend(q[..., SOME_ROWS, :], k, v, FP32, scale=scale, rows=SOME_ROWS, **options)
    for output in OUTPUTS:
        expected, got = np.moveaxis(getattr(whole, output), 2, 0)[SOME_ROWS], getattr(some_rows, output)
        short = output in ("bound", "deviation", "scale_direction")  # float32 is in them
        absolute = 2.0**-20 if output == "scale_direction" else FLOAT64_ROUNDING
        np.testing.assert_allclose(
            np.moveaxis(got, 2, 0), expected, rtol=LOOSER if short else FLOAT64_ROUNDING, atol=absolute
        )


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("name", ["plain", "grouped heads", "causal", "float mask", "softcap"])
def test_panels_side_by_side_are_those_of_one_thread(monkeypatch, name):
    form = FORMS[name]
    q, k, v = operands(form)

    def attended(alone):
        monkeypatch.setattr(
            "onnx_attest.verify.oracle.streaming.attention.one_thread_in_blas", lambda: not alone
        )
        return attend(q, k, v, FP32, scale=0.2, **form.options)

    alone, together = attended(True), attended(False)
    for output in OUTPUTS:
        np.testing.assert_array_equal(getattr(together, output), getattr(alone, output))


def test_shapes_that_do_not_fit_are_named():
    q, k, v = operands(Form(heads=(4, 2)))
    with pytest.raises(ValueError, match=r"q \(1, 3, 37, 20\), k \(1, 2, 150, 20\)"):
        attend(q[:, :3], k, v, FP32, scale=1.0)


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_value_that_is_no_number_is_seen_through_a_mask_as_by_the_dense_oracle(poison):
    q, k, v = operands(Form(queries=64, keys=192))
    v[..., 150:, 3] = poison
    streamed = attend(q, k, v, FP32, scale=0.2, causal=0)
    with np.errstate(all="ignore"):
        whole, _ = dense.attention(
            *map(Bounded, (q, k, v)), FP32, scale=0.2, allowed=Bounded(arrays.causal_mask(64, 192))
        )
    np.testing.assert_array_equal(np.isnan(streamed.value), np.isnan(whole.value))
    assert np.isnan(whole.value).any()


def attention_graph(inputs: int, **attributes: object) -> onnx.ModelProto:
    names = ["q", "k", "v", "mask"][:inputs]
    node = onnx.helper.make_node("Attention", names, ["y"], name="attention", **attributes)
    given = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in names]
    output = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)
    graph = onnx.helper.make_graph([node], "g", given, [output])
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 24)])


@pytest.mark.parametrize(
    ("inputs", "attributes"),
    [
        (3, {}),
        (3, {"is_causal": 1}),
        (4, {}),
        (4, {"is_causal": 1}),
        (3, {"softcap": 3.0, "scale": 0.3}),
        (3, {"q_num_heads": 4, "kv_num_heads": 2}),
    ],
)
def test_a_large_attention_in_a_graph_is_streamed_and_says_so(monkeypatch, inputs, attributes):
    rng = np.random.default_rng(5)
    packed = "q_num_heads" in attributes
    shapes = [(2, n, heads * 8) if packed else (2, heads, n, 8) for n, heads in ((53, 4), (61, 2), (61, 2))]
    q, k, v = (rng.standard_normal(shape).astype(np.float32) for shape in shapes)
    mask = np.where(rng.random((53, 61)) < 0.7, 0, -np.inf).astype(np.float32)
    mask[:, 0] = 0
    oracle = GraphOracle(attention_graph(inputs, **attributes))
    given = dict(zip(oracle.inputs, (q, k, v, mask), strict=False))
    arithmetic = replace(PROFILES["fp32"], deviations=True)
    dense = oracle.evaluate(given, arithmetic)
    monkeypatch.setattr(operators, "STREAMED_FROM", 0)
    streamed = oracle.evaluate(given, arithmetic)
    assert (len(dense.attentions), dense.unseen) == (1, ())
    assert (streamed.attentions, streamed.unseen) == ((), ("attention",))
    one, other = dense.outputs["y"], streamed.outputs["y"]
    np.testing.assert_allclose(other.value, one.value, atol=1e-13)
    np.testing.assert_allclose(other.error, one.error, rtol=1e-4)
    np.testing.assert_allclose(np.sqrt(other.variance), np.sqrt(one.variance), rtol=1e-4)
