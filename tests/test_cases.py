"""Cases: distinct sizes, edges, masks that are what they are called, and seeds that depend on nothing else."""

from __future__ import annotations

import numpy as np
import pytest

from onnx_attest.models import CATALOGUE, Contract, TensorSpec
from onnx_attest.verify.cases import LOGIT_STDS, OVERFLOW_STD, allowed_by, make_inputs, make_mask, plan_cases
from onnx_attest.verify.records import CaseRecord

ENTRIES = pytest.mark.parametrize("entry", CATALOGUE, ids=lambda entry: entry.name)


@ENTRIES
def test_sizes_are_distinct_on_every_axis(entry):
    """K17: heads, length and width equal, a swapped axis passes. A length of 1 is the one edge that may collide."""
    fixed = {axis for spec in entry.contract.inputs for axis in spec.axes if isinstance(axis, int)}
    for case in plan_cases(entry.contract):
        sizes = [size for size in (*case.axes.values(), *fixed) if size != 1]
        assert len(set(sizes)) == len(sizes), case.id


@ENTRIES
def test_the_edges_are_there(entry):
    length = "seq_len" if "seq_len" in entry.contract.traced else "q_len"
    traced = entry.contract.traced[length]
    lengths = {case.axes[length] for case in plan_cases(entry.contract)}
    assert {1, traced - 1, traced, traced + 1} <= lengths
    assert any(length % 8 for length in lengths if length > 8)
    assert any(length % 32 for length in lengths if length > 32)
    batches = {case.axes["batch"] for case in plan_cases(entry.contract) if case.axes[length] == traced}
    assert len(batches) > 1  # batch varies alone, too


@ENTRIES
def test_every_mask_kind_and_logit_scale_is_swept(entry):
    cases = plan_cases(entry.contract)
    assert {case.mask for case in cases} - {None} == set(entry.contract.mask_kinds())
    assert {case.logit_std for case in cases} >= {*LOGIT_STDS, OVERFLOW_STD}


def test_ids_are_unique():
    for entry in CATALOGUE:
        ids = [case.id for case in plan_cases(entry.contract)]
        assert len(set(ids)) == len(ids)


def test_seed_of_a_case_depends_on_nothing_but_the_case_and_the_run():
    contract = CATALOGUE[0].contract
    seeds = {case.id: case.seed for case in plan_cases(contract)}
    without_masks = Contract(contract.inputs[:3], contract.outputs, contract.traced)
    shared = {case.id.replace(",mask=None", ""): case.seed for case in plan_cases(without_masks)}
    assert len(set(seeds.values())) == len(seeds)
    assert plan_cases(contract, seed=1)[0].seed != plan_cases(contract)[0].seed
    assert shared.keys().isdisjoint(seeds)  # a case without a mask is another case, with another id


def test_inputs_are_the_same_every_time():
    contract = CATALOGUE[0].contract
    case = plan_cases(contract)[4]
    first, second = make_inputs(contract, case), make_inputs(contract, case)
    for name, array in first.items():
        np.testing.assert_array_equal(array, second[name])


def test_gain_scales_what_the_logits_are_made_of_and_nothing_else():
    contract = CATALOGUE[0].contract
    case = plan_cases(contract)[0]
    plain, loud = make_inputs(contract, case), make_inputs(contract, case, gain=4.0)
    for name, factor in {"Q": 4, "K": 4, "V": 1}.items():
        np.testing.assert_array_equal(loud[name], factor * plain[name])


def mask(kind, shape=(3, 7, 7), seed=0):
    return make_mask(kind, shape, np.random.default_rng(seed))


def test_mask_all_hides_nothing():
    assert mask("all").all()


def test_mask_causal_is_lower_triangular():
    np.testing.assert_array_equal(mask("causal")[1], np.tril(np.ones((7, 7), bool)))


def test_mask_padding_hides_the_last_keys_of_each_sequence_from_all_queries():
    hidden = ~mask("padding")
    assert (hidden == hidden[:, :1]).all()
    assert hidden[:, 0].sum(-1).tolist() == [1, 2, 3]
    assert not hidden[..., 0].any()


def test_mask_left_padding_hides_the_first_keys():
    np.testing.assert_array_equal(mask("left-padding"), mask("padding")[..., ::-1])


def test_mask_of_keys_alone_is_the_same_for_every_query():
    np.testing.assert_array_equal(mask("padding", (3, 7)), mask("padding")[:, 0])


@pytest.mark.parametrize(
    ("dtype", "inverted", "allowed", "hidden"),
    [("bool", False, True, False), ("bool", True, False, True), ("float", False, 0.0, -np.inf)],
)
def test_masks_are_written_as_the_contract_says_and_read_back(dtype, inverted, allowed, hidden):
    spec = TensorSpec("mask", ("batch", "l", "s"), dtype, "mask", ("causal",), inverted)
    contract = Contract((spec,), (TensorSpec("y", ("batch",)),), {"batch": 1, "l": 2, "s": 2})
    made = make_inputs(contract, CaseRecord(name="c", axes=contract.traced, mask="causal"))["mask"]
    assert made.tolist() == [[[allowed, hidden], [allowed, allowed]]]
    np.testing.assert_array_equal(allowed_by(spec, made)[0], np.tril(np.ones((2, 2), bool)))


def test_constant_tokens_are_the_same_at_every_position():
    contract = CATALOGUE[1].contract
    case = next(case for case in plan_cases(contract) if case.distribution == "constant")
    X = make_inputs(contract, case)["X"]
    np.testing.assert_array_equal(X, np.broadcast_to(X[:, :1], X.shape))


def test_integers_are_small_whole_numbers():
    contract = CATALOGUE[0].contract
    case = next(case for case in plan_cases(contract) if case.distribution == "integers")
    assert set(np.unique(make_inputs(contract, case)["V"])) <= set(range(-3, 4))


def test_one_query_against_several_keys_where_there_are_two_lengths():
    cross = next(entry for entry in CATALOGUE if entry.name == "cross")
    case = next(case for case in plan_cases(cross.contract) if case.name == "one-query")
    assert case.axes["q_len"] == 1
    assert case.axes["kv_len"] > 1


@pytest.mark.parametrize("seed", range(20))
def test_mask_holes_empties_no_row(seed):
    holes = mask("holes", seed=seed)
    assert holes.any(-1).all()
    assert not holes.all()


def test_mask_empty_row_empties_one_row():
    assert (~mask("empty-row").any(-1)).sum(-1).tolist() == [1, 1, 1]


def test_contract_of_fixed_sizes_has_its_one_size():
    fixed = Contract((TensorSpec("x", (4, 6), role="tokens"),), (TensorSpec("y", (4, 6)),), {})
    assert {tuple(case.axes) for case in plan_cases(fixed)} == {()}


def test_several_length_axes_get_several_sizes():
    q = TensorSpec("q", ("batch", "queries", 8), role="query")
    k = TensorSpec("k", ("batch", "keys", 8), role="key")
    contract = Contract(
        (q, k), (TensorSpec("y", ("batch", "queries", 8)),), {"batch": 2, "queries": 5, "keys": 7}
    )
    for case in plan_cases(contract):
        if case.name not in ("single",):
            assert case.axes["queries"] != case.axes["keys"], case.id


def test_id_of_a_case_is_readable():
    case = CaseRecord(name="traced", axes={"batch": 2, "seq_len": 7}, mask="causal", logit_std=3.0)
    assert case.id == "traced[batch=2,seq_len=7,mask=causal,logit_std=3]"


def test_sizes_inside_the_modules_are_distinct_from_the_cases():
    """K17 again, for sizes that no signature shows: the number of heads and their width."""
    from onnx_attest.models.catalogue import D_EVEN, D_MODEL, D_WIDE, HEADS

    inside = {HEADS, 2 * HEADS, D_MODEL // HEADS, D_EVEN // HEADS, D_WIDE // (2 * HEADS)}
    for entry in CATALOGUE:
        for case in plan_cases(entry.contract):
            assert inside.isdisjoint(case.axes.values()), case.id


@pytest.mark.parametrize("dtype", ["bool", "int64"])
def test_a_tensor_of_no_axes_is_an_array_too(dtype):
    contract = Contract((TensorSpec("flag", (), dtype),), (TensorSpec("y", ()),), {})
    (case, *_) = plan_cases(contract, attention=False)
    flag = make_inputs(contract, case)["flag"]
    assert (type(flag), flag.dtype, flag.shape) == (np.ndarray, np.dtype(dtype), ())
