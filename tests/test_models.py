"""The catalogue's modules compute what they say, and their contracts hold together."""

from __future__ import annotations

import itertools

import pytest
import torch

from onnx_attest.models import CATALOGUE, Contract, Entry, TensorSpec, build_module, catalogue
from onnx_attest.models.contract import guess_input
from onnx_attest.models.entry import parameters_digest
from onnx_attest.models.scaled_dot_product import (
    NaiveSoftmaxAttention,
    ScaledDotProductAttention,
    UnscaledAttention,
)

BY_NAME = {entry.name: entry for entry in CATALOGUE}
ENTRIES = pytest.mark.parametrize("entry", CATALOGUE, ids=lambda entry: entry.name)


def example(entry: Entry) -> tuple[torch.Tensor, ...]:
    from onnx_attest.export.lower import example_inputs

    return example_inputs(entry.contract, torch.float32)


def size_of(axis: str | int, traced: dict[str, int]) -> int:
    """Return the size of an output's axis; a name may be a sum, `past_len + seq_len`."""
    return axis if isinstance(axis, int) else sum(traced[name] for name in axis.split(" + "))


@ENTRIES
def test_outputs_have_the_shapes_of_the_contract(entry):
    outputs = build_module(entry)(*example(entry))
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    assert len(outputs) == len(entry.contract.outputs)
    for spec, output in zip(entry.contract.outputs, outputs, strict=True):
        assert tuple(output.shape) == tuple(size_of(axis, entry.contract.traced) for axis in spec.axes)


@ENTRIES
def test_all_sizes_of_a_contract_differ(entry):
    """K17: with equal sizes a swapped axis passes by coincidence."""
    fixed = {axis for spec in entry.contract.inputs for axis in spec.axes if isinstance(axis, int)}
    sizes = [*fixed, *entry.contract.traced.values()]
    assert len(set(sizes)) == len(sizes)


@ENTRIES
def test_modules_are_built_the_same_whatever_the_generator(entry):
    torch.manual_seed(1)
    first = parameters_digest(build_module(entry))
    torch.manual_seed(2)
    before = torch.random.get_rng_state()
    assert parameters_digest(build_module(entry)) == first
    assert torch.equal(torch.random.get_rng_state(), before)  # nor is the user's generator moved


@ENTRIES
def test_empty_rows_follow_the_declared_policy(entry):
    if "empty-row" not in entry.contract.mask_kinds():
        pytest.skip("takes no mask that can empty a row")
    mask_spec = next(spec for spec in entry.contract.inputs if spec.role == "mask")
    module = build_module(entry)
    inputs = dict(zip((spec.name for spec in entry.contract.inputs), example(entry), strict=True))
    inputs[mask_spec.name][..., 3, :] = float("-inf") if mask_spec.dtype == "float" else 0
    weights = _weights_of(module, inputs)
    expected = torch.nan if entry.contract.empty_rows == "nan" else 0.0
    assert torch.equal(
        weights[..., 3, :].nan_to_num(nan=9.0),
        torch.full_like(weights[..., 3, :], expected).nan_to_num(nan=9.0),
    )
    assert weights[..., 2, :].sum(-1).isfinite().all()


def _weights_of(module, inputs):
    """Return the attention weights of a run: returned by the module, or seen inside its kernel."""
    from onnx_attest.verify.runtimes.torch_weights import WeightsSeen

    with torch.no_grad(), WeightsSeen() as seen:
        output = module(*inputs.values())
    return seen.seen[0] if seen.seen else output[1]


def test_scaled_dot_product_is_the_formula():
    torch.manual_seed(0)
    Q, K, V = torch.randn(2, 5, 4), torch.randn(2, 5, 4), torch.randn(2, 5, 3)
    output, weights = ScaledDotProductAttention(4)(Q, K, V)
    expected = torch.nn.functional.scaled_dot_product_attention(Q, K, V)
    torch.testing.assert_close(output, expected)
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 5))


def test_causal_rows_ignore_the_future():
    module = build_module(BY_NAME["causal"])
    X = torch.randn(1, 9, 45)
    changed = X.clone()
    changed[:, 5:] += 1
    torch.testing.assert_close(module(X)[:, :5], module(changed)[:, :5], rtol=0, atol=0)


def test_counter_examples_fail_where_they_should_and_not_before():
    torch.manual_seed(0)
    Q, K, V = torch.randn(1, 6, 20), torch.randn(1, 6, 20), torch.randn(1, 6, 3)
    right, _ = ScaledDotProductAttention(20)(Q, K, V)
    torch.testing.assert_close(NaiveSoftmaxAttention(20)(Q, K, V)[0], right)
    assert NaiveSoftmaxAttention(20)(20 * Q, 20 * K, V)[0].isnan().any()
    assert ScaledDotProductAttention(20)(20 * Q, 20 * K, V)[0].isfinite().all()
    assert not torch.allclose(UnscaledAttention(20)(Q, K, V)[0], right, rtol=0.1)


def test_names_are_distinct_and_listed():
    assert list(catalogue())[: len(CATALOGUE)] == [entry.name for entry in CATALOGUE]
    assert all(a.name != b.name for a, b in itertools.combinations(CATALOGUE, 2))


@pytest.mark.parametrize(
    ("inputs", "traced", "message"),
    [
        ((TensorSpec("x", ("b", 3)),), {}, "no size for the axes \\['b'\\]"),
        ((TensorSpec("y", (3,)),), {}, "must be distinct"),
        ((TensorSpec("m", (3, 3), "bool", "mask"),), {}, "role 'mask' and masks go together"),
    ],
)
def test_contracts_that_contradict_themselves_are_refused(inputs, traced, message):
    with pytest.raises(ValueError, match=message):
        Contract(inputs, (TensorSpec("y", (3,)),), traced)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: TensorSpec("m", (3, 3), "bool", "mask", ("empty",)),
            "m: unknown mask 'empty'; there are all, causal",
        ),
        (lambda: TensorSpec("x", (3, 3), role="token"), "x: unknown role 'token'; there are query"),
        (
            lambda: Contract((), (TensorSpec("y", (3,)),), {}, empty_rows="zeros"),
            "unknown empty_rows 'zeros'; there are nan",
        ),
    ],
)
def test_unknown_words_are_refused_where_they_are_written(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_guesses_of_roles():
    assert guess_input("attn_mask", ("b", "l", "l"), "bool").role == "mask"
    assert guess_input("flag", ("b", "l"), "bool").role == "data"
    assert guess_input("x", ("b", "l", 8), "float").role == "tokens"
    assert guess_input("ids", ("b", "l"), "int64").role == "data"
