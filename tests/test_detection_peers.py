"""benchmarks/detection/peers.py: each peer catches what it should, is quiet on what is equal, and treats NaN as it does.

A peer that is not installed skips its tests by name; benchmarks/detection/README.md says how to install them all.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import inspect
import re
import sys
from pathlib import Path
from typing import Any

import attention_arrays
import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

ROOT = Path(__file__).parent.parent
DETECTION = ROOT / "benchmarks" / "detection"


def load_peers() -> Any:
    """benchmarks/ is run by hand and not installed, so the module is loaded by its path."""
    spec = importlib.util.spec_from_file_location("detection_peers", DETECTION / "peers.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


peers = load_peers()
BY_NAME = {peer.name: peer for peer in peers.PEERS}
POLYGRAPHY_RUNS = ("Polygraphy, run", "Polygraphy, run --input-shapes")
NAN_ON_BOTH_SIDES_PASSES = (
    "torch.onnx verify",
    "onnx-diagnostic, check_discrepancies",
    "onnx-diagnostic, sbs",
)
every_peer = pytest.mark.parametrize("name", list(BY_NAME))


def attention(inputs: Any, *, scale: float | None = None) -> dict[str, NDArray[Any]]:
    return {"out": attention_arrays.naive(inputs["q"], inputs["k"], inputs["v"], scale=scale)}


def question(run: Any = attention, dtype: Any = np.float32, run_reference: Any = attention) -> Any:
    """What `run` gives beside what attention gives, on one case."""
    inputs = {name: array.astype(dtype) for name, array in zip("qkv", attention_arrays.inputs(), strict=True)}
    exact = attention({name: array.astype(np.float64) for name, array in inputs.items()})
    return peers.Question(
        inputs=inputs,
        candidate=run(inputs),
        reference=run_reference(inputs),
        exact=exact,
        run_candidate=run,
        run_reference=run_reference,
        axes={
            "q": ("batch", 3, "queries", 20),
            "k": ("batch", 3, "keys", 20),
            "v": ("batch", 3, "keys", 12),
        },
    )


def judge(name: str, asked: Any) -> Any:
    peer = BY_NAME[name]
    if peer.version is None:
        pytest.skip(f"{peer.package} is not installed")
    return peer.judge(asked)


def doubled(inputs: Any) -> dict[str, NDArray[Any]]:
    return {"out": attention(inputs)["out"] * 2}


def with_nan(inputs: Any) -> dict[str, NDArray[Any]]:
    out = attention(inputs)["out"]
    out.flat[0] = np.nan
    return {"out": out}


@every_peer
def test_a_gross_error_alarms(name: str) -> None:
    assert judge(name, question(doubled)).alarm is True


@every_peer
def test_an_equal_output_does_not(name: str) -> None:
    answer = judge(name, question())
    assert answer.alarm is False, answer


@every_peer
def test_nan_in_the_candidate_alarms_all_but_torch_verify(name: str) -> None:
    assert judge(name, question(with_nan)).alarm is (name != "torch.onnx verify")


@every_peer
def test_nan_on_both_sides_is_as_peers_md_says(name: str) -> None:
    answer = judge(name, question(with_nan, run_reference=with_nan))
    assert answer.alarm is (name not in NAN_ON_BOTH_SIDES_PASSES), answer


@every_peer
def test_a_missing_head_alarms(name: str) -> None:
    def cut(inputs: Any) -> dict[str, NDArray[Any]]:
        return {"out": attention(inputs)["out"][:, :2]}

    assert judge(name, question(cut)).alarm is True


@every_peer
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_the_short_formats_are_judged_or_refused_in_words(name: str, dtype: Any) -> None:
    answer = judge(name, question(doubled, dtype))
    refuses = dtype is ml_dtypes.bfloat16 and name in (*POLYGRAPHY_RUNS, "optimum")
    assert answer.alarm is (None if refuses else True), answer
    assert answer.words.startswith("errored: ") is refuses


def test_a_peer_that_is_missing_says_so() -> None:
    peer = dataclasses.replace(peers.PEERS[0], package="no-such-distribution")
    assert peer.version is None
    assert peer.judge(question()) == peers.Answer(None, "skipped: not installed (no-such-distribution)")


def test_what_a_peer_raises_is_told() -> None:
    def rule(_: Any) -> Any:
        raise ValueError("no such dtype\nand a trace")

    peer = dataclasses.replace(peers.PEERS[-1], rule=rule)
    assert peer.judge(question()) == peers.Answer(None, "errored: ValueError: no such dtype")


# torch


def test_torch_verify_passes_a_gross_error_behind_a_nan() -> None:
    def both(inputs: Any) -> dict[str, NDArray[Any]]:
        return {"out": with_nan(inputs)["out"] * 2}

    assert judge("torch.onnx verify", question(both)).alarm is False


@pytest.mark.parametrize(("excess", "alarm"), [(0.9, False), (1.1, True)])
def test_torch_verify_draws_the_line_at_its_absolute_threshold(excess: float, alarm: bool) -> None:
    ones = {"out": np.ones(5, np.float32)}
    moved = {"out": ones["out"] + np.float32(excess * peers.TORCH_MAX_ABS)}
    asked = peers.Question(inputs={}, candidate=moved, reference=ones)
    assert judge("torch.onnx verify", asked).alarm is alarm


@pytest.mark.pinned
def test_the_thresholds_of_torch_verify_are_those_of_its_source() -> None:
    from torch.onnx._internal.exporter import _core

    found = re.findall(r"verification_result\.max_(abs|rel)_diff >= (\S+):", inspect.getsource(_core))
    assert [(kind, float(value)) for kind, value in found] == [
        ("abs", peers.TORCH_MAX_ABS),
        ("rel", peers.TORCH_MAX_REL),
    ]


def test_assert_close_goes_by_the_dtype() -> None:
    def slightly_off(inputs: Any) -> dict[str, NDArray[Any]]:
        out = attention(inputs)["out"]
        return {"out": out + np.spacing(out) * 2}  # two units in the last place

    assert judge("torch.testing.assert_close", question(slightly_off)).alarm is False
    assert judge("torch.testing.assert_close", question(slightly_off, np.float16)).alarm is True


# FlashAttention's rule


@pytest.mark.parametrize(("multiple", "alarm"), [(2, False), (4, True)])
def test_flash_attention_allows_twice_the_error_of_torch(multiple: int, alarm: bool) -> None:
    exact = np.ones((2, 3))  # at 1 adding 0.3 and taking it off again rounds by less than the step used here
    step = 2.0**-10
    asked = peers.Question(
        inputs={},
        candidate={"out": (exact + multiple * step).astype(np.float32)},
        reference={"out": (exact + step).astype(np.float32)},
        exact={"out": exact},
    )
    assert judge("FlashAttention's rule", asked).alarm is alarm


def test_flash_attention_needs_the_exact_output() -> None:
    answer = judge("FlashAttention's rule", dataclasses.replace(question(), exact=None))
    assert answer == peers.Answer(None, "skipped: it needs the output in higher precision")


# Polygraphy


def unscaled(inputs: Any) -> dict[str, NDArray[Any]]:
    return attention(inputs, scale=1.0)


@pytest.mark.parametrize(
    ("name", "length", "alarm"), list(zip(POLYGRAPHY_RUNS, (1, 17), (False, True), strict=True))
)
def test_without_shapes_polygraphy_feeds_ones_and_a_softmax_over_one_key_hides_its_scale(
    name: str, length: int, alarm: bool
) -> None:
    seen: list[Any] = []

    def recorded(inputs: Any) -> dict[str, NDArray[Any]]:
        seen.append(inputs)
        return unscaled(inputs)

    asked = dataclasses.replace(question(unscaled), run_candidate=recorded)
    assert judge(name, asked).alarm is alarm
    assert seen[-1]["q"].shape[2] == length
    assert all(0 <= array.min() <= array.max() < 1 for array in seen[-1].values())


@pytest.mark.parametrize("name", POLYGRAPHY_RUNS)
def test_polygraphy_runs_nothing_where_nothing_runs(name: str) -> None:
    answer = judge(name, dataclasses.replace(question(), run_candidate=None))
    assert answer.alarm is None
    assert answer.words.startswith("skipped: it makes its own inputs")


def test_for_polygraphy_either_tolerance_is_enough() -> None:
    reference = {"out": np.array([1000.0, 0.0], np.float32)}
    near = {"out": np.array([1000.005, 5e-6], np.float32)}
    asked = peers.Question(inputs={}, candidate=near, reference=reference)
    assert judge("Polygraphy, comparison", asked).alarm is False


# onnx-diagnostic


def test_what_check_discrepancies_trips_over_is_told_and_not_counted() -> None:
    answer = judge("onnx-diagnostic, check_discrepancies", question())
    assert answer.alarm is False
    assert "SUCCESS itself would be False" in answer.words


# The files beside it


def test_the_readme_has_a_row_for_each_peer() -> None:
    readme = (DETECTION / "README.md").read_text()
    assert len(BY_NAME) == len(peers.PEERS)
    assert [name for name in BY_NAME if f"| {name} |" not in readme] == []


def test_the_requirements_agree_with_the_constraints() -> None:
    def pins(text: str) -> dict[str, str]:
        return dict(re.findall(r"^([\w-]+)==(\S+)$", text, re.MULTILINE))

    ours = pins((ROOT / "constraints.txt").read_text())
    # The peers' own part may ask for others: optimum-onnx asks for an older transformers than our tests have.
    shared, of_the_peers = map(
        pins, (DETECTION / "requirements.txt").read_text().split("# The peers. ", maxsplit=1)
    )
    assert shared == {name: ours[name] for name in shared}
    assert {peer.package for peer in peers.PEERS if peer.package} <= shared.keys() | of_the_peers.keys()
