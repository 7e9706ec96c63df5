"""Large arrays block by block: the same numbers as at once, whatever broadcasts and whatever is reduced."""

from __future__ import annotations

import numpy as np
import pytest

from onnx_attest.verify.arithmetic import PROFILES
from onnx_attest.verify.oracle import blocks
from onnx_attest.verify.oracle.attention import softmax
from onnx_attest.verify.oracle.blocks import in_blocks, over_blocks
from onnx_attest.verify.oracle.bounded import Bounded, add, divide, multiply

SHAPES = [
    ((2, 3, 200, 300), (2, 3, 200, 300)),
    ((2, 3, 200, 300), (2, 1, 1, 300)),
    ((400, 1), (1, 700)),
    ((300_000,), ()),
    ((7, 40_000), (1,)),
    ((2, 70_000, 2), (70_000, 1)),
]


@pytest.fixture(params=[1, 3], ids=["one thread", "three threads"])
def threads(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "_threads", lambda: request.param)


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize(("a", "b"), SHAPES)
def test_same_as_at_once(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal(a), rng.standard_normal(b)
    calls = []

    def of(x: np.ndarray, y: np.ndarray, nothing: None) -> tuple[np.ndarray, None]:
        calls.append(nothing)
        return x * y + y, nothing

    result, nothing = in_blocks(of, (x, y, None))
    np.testing.assert_array_equal(result, x * y + y)
    assert nothing is None
    assert len(calls) > 1


@pytest.mark.usefixtures("threads")
def test_axes_that_are_reduced_stay_whole() -> None:
    x = np.random.default_rng(0).standard_normal((50, 40, 130))
    total, scaled = in_blocks(
        lambda x: (x.sum(-1, keepdims=True), x / x.sum(-1, keepdims=True)), (x,), whole_axes=1
    )
    np.testing.assert_array_equal(total, x.sum(-1, keepdims=True))
    np.testing.assert_array_equal(scaled, x / x.sum(-1, keepdims=True))


@pytest.mark.usefixtures("threads")
def test_every_block_is_asked_once() -> None:
    x = np.arange(300_000.0)
    assert sum(over_blocks(lambda x: float(x.sum()), (x,))) == x.sum()


@pytest.mark.usefixtures("threads")
def test_an_error_in_a_block_reaches_the_caller() -> None:
    b = np.ones(300_000)
    b[-1] = 1e-9
    with pytest.raises(ArithmeticError, match="zero within its rounding error"):
        divide(Bounded(np.ones(300_000)), Bounded(b, np.full(300_000, 1e-6)), PROFILES["fp32"])


@pytest.mark.usefixtures("threads")
def test_warnings_are_off_in_every_thread_where_they_are_off_in_the_caller() -> None:
    x = np.zeros(300_000)
    with np.errstate(all="ignore"):
        (result,) = in_blocks(lambda x: (x / x,), (x,))
    assert np.isnan(result).all()


@pytest.mark.parametrize("operation", [add, multiply])
def test_bounds_deviations_and_magnitudes_are_those_of_small_pieces(operation) -> None:  # type: ignore[no-untyped-def]
    from dataclasses import replace

    rng = np.random.default_rng(0)
    arithmetic = replace(PROFILES["fp32"], deviations=True)
    shape = (4, 100, 400)
    value, error, size, variance = (
        rng.standard_normal(shape),
        rng.random(shape),
        rng.random(shape),
        rng.random(shape),
    )
    a, b = Bounded(value, error, size, variance=variance), Bounded(rng.standard_normal(400))
    whole = operation(a, b, arithmetic)
    for i in range(4):
        piece = Bounded(value[i : i + 1], error[i : i + 1], size[i : i + 1], variance=variance[i : i + 1])
        part = operation(piece, b, arithmetic)
        for name in ("value", "error", "magnitude", "variance"):
            mine, theirs = getattr(part, name), getattr(whole, name)
            assert (mine is None) == (theirs is None), name
            if mine is not None:
                np.testing.assert_array_equal(mine, theirs[i : i + 1], err_msg=name)


def test_softmax_of_many_rows_is_that_of_few() -> None:
    logits = np.random.default_rng(0).standard_normal((6, 100, 300))
    logits[0, :, 200:] = -np.inf
    whole = softmax(Bounded(logits), PROFILES["fp32"])
    for i in range(6):
        part = softmax(Bounded(logits[i : i + 1]), PROFILES["fp32"])
        np.testing.assert_array_equal(part.value, whole.value[i : i + 1])
        np.testing.assert_array_equal(part.error, whole.error[i : i + 1])  # type: ignore[index]
        assert part.softmax is not None
        assert whole.softmax is not None
        np.testing.assert_array_equal(part.softmax.masked, whole.softmax.masked[i : i + 1])


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((500, 300), (300, 200)),
        ((2, 3, 130, 300), (300, 200)),
        ((2, 3, 130, 300), (1, 3, 300, 70)),
        ((1, 4, 1, 300), (2, 1, 300, 9000)),
    ],
)
def test_products_in_stretches_of_rows(
    a: tuple[int, ...], b: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "1")
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal(a), rng.standard_normal(b)
    np.testing.assert_allclose(blocks.matmul(x, y), np.matmul(x, y), rtol=0, atol=1e-12)
