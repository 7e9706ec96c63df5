"""Whether each peer would have called an output wrong, by the peer's own code wherever it can be called.

`PEERS` holds one `Peer` a row of PEERS.md; all take the same `Question` and give an `Answer`. README.md beside this
file says for each which entry point is called, with which default tolerance, on which inputs.

Requirements that this module satisfies:

* a peer is imported only when it is asked; one that is missing answers "skipped: not installed", never nothing;
* what a peer raises, because it refuses the dtype for example, is no alarm and no pass: `alarm` is None, "errored";
* a comparison is called and not rewritten; what had to be rewritten names the source line it repeats.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
from numpy.typing import NDArray

Arrays = Mapping[str, NDArray[Any]]
"""Inputs or outputs by name, in the order of the graph; bfloat16 as ml_dtypes has it."""
Run = Callable[[Arrays], Arrays]


@dataclass(frozen=True, kw_only=True, eq=False)
class Question:
    """A candidate, and what a peer could know about it.

    Attributes:
        inputs: of the case.
        candidate: what the kernel or the file under test gave on them.
        reference: what the peer would hold against it: torch eager, in the dtype of the candidate.
        exact: the outputs in float64; FlashAttention's rule needs them.
        run_candidate: the candidate on other inputs; a peer that makes its own inputs needs it.
        run_reference: the reference on other inputs.
        axes: of each input, as the file declares them: a number is fixed, a name is symbolic.
    """

    inputs: Arrays
    candidate: Arrays
    reference: Arrays
    exact: Arrays | None = None
    run_candidate: Run | None = None
    run_reference: Run | None = None
    axes: Mapping[str, tuple[int | str, ...]] | None = None


@dataclass(frozen=True)
class Answer:
    """What a peer said: `alarm` is None if it gave no judgement, and `words` then open with "skipped" or "errored"."""

    alarm: bool | None
    words: str


@dataclass(frozen=True)
class Peer:
    """A tool or a rule that people use today.

    Attributes:
        name: of the row.
        package: the distribution it comes in; None for a rule that is only written down in a test suite.
        calls: the entry point.
        tolerance: its default, in words.
        sees: the inputs it judges on.
        rule: the judgement.
    """

    name: str
    package: str | None
    calls: str
    tolerance: str
    sees: str
    rule: Callable[[Question], Answer]

    @property
    def version(self) -> str | None:
        """The version that is installed, "a rule" if there is nothing to install, None if it is missing."""
        if self.package is None:
            return "a rule"
        try:
            return importlib.metadata.version(self.package)
        except importlib.metadata.PackageNotFoundError:
            return None

    def judge(self, question: Question) -> Answer:
        """Return this peer's judgement."""
        if self.version is None:
            return Answer(None, f"skipped: not installed ({self.package})")
        try:
            return self.rule(question)
        except Exception as error:  # noqa: BLE001 - whatever a peer raises ends this answer, and is told in it
            first_line = str(error).strip().partition("\n")[0]
            return Answer(None, f"errored: {type(error).__name__}: {first_line}")


# Polygraphy


def _polygraphy_compare(question: Question) -> Answer:
    """The comparison alone, on the outputs of the case: `polygraphy run --load-inputs --load-outputs`."""
    from polygraphy.comparator import IterationResult, RunResults

    results = RunResults()
    for name, outputs in (("candidate", question.candidate), ("reference", question.reference)):
        arrays = {key: _for_polygraphy(value) for key, value in outputs.items()}
        results.append((name, [IterationResult(outputs=arrays, runtime=0.0, runner_name=name)]))
    return _polygraphy_verdict(results)


def _polygraphy_run(question: Question) -> Answer:
    """`polygraphy run` as typed first: no shapes, so its loader replaces every symbolic axis by 1."""
    return _polygraphy_flow(question, shapes=False)


def _polygraphy_run_shapes(question: Question) -> Answer:
    """`polygraphy run --input-shapes` with the shapes of the case; the values are still the loader's own."""
    return _polygraphy_flow(question, shapes=True)


def _polygraphy_flow(question: Question, *, shapes: bool) -> Answer:
    from polygraphy.common import TensorMetadata
    from polygraphy.comparator import Comparator, DataLoader

    if question.run_candidate is None or question.run_reference is None or question.axes is None:
        return Answer(None, "skipped: it makes its own inputs, so it needs what runs on them, and the axes")
    runners = [
        _polygraphy_runner("candidate", question.run_candidate, question),
        _polygraphy_runner("reference", question.run_reference, question),
    ]
    given = TensorMetadata()
    if shapes:  # as `--input-shapes` does: the dtype is left to the model
        for name, array in question.inputs.items():
            given.add(name, dtype=None, shape=array.shape)
    with _polygraphy_quiet():
        results = Comparator.run(runners, data_loader=DataLoader(input_metadata=given))
    return _polygraphy_verdict(results)


def _polygraphy_runner(name: str, run: Run, question: Question) -> Any:
    """Return a runner as OnnxrtRunner is one: symbolic axes are names in its metadata."""
    from polygraphy.backend.base import BaseRunner
    from polygraphy.common import TensorMetadata
    from polygraphy.datatype import DataType

    dtypes = {key: DataType.from_dtype(_polygraphy_dtype(array)) for key, array in question.inputs.items()}

    class Runner(BaseRunner):  # type: ignore[misc,unused-ignore]
        """The callable in Polygraphy's clothes."""

        def get_input_metadata_impl(self) -> Any:
            metadata = TensorMetadata()
            for key, dtype in dtypes.items():
                metadata.add(key, dtype=dtype, shape=list((question.axes or {})[key]))
            return metadata

        def infer_impl(self, feed_dict: Arrays) -> dict[str, Any]:
            start = time.perf_counter()
            outputs = run(feed_dict)
            self.inference_time = time.perf_counter() - start
            return {key: _for_polygraphy(value) for key, value in outputs.items()}

    return Runner(name=name)


def _polygraphy_verdict(results: Any) -> Answer:
    """Return what `Comparator.compare_accuracy` with its default comparison says; `polygraphy run` exits by it.

    The candidate stands first: relative differences are to the second.
    """
    from polygraphy.comparator import Comparator

    with _polygraphy_quiet():
        accuracy = Comparator.compare_accuracy(results)
    (comparison,) = accuracy
    outputs = [output for pairs in comparison.values() for matches in pairs for output in matches.items()]
    told = "; ".join(
        f"{name}: {'PASSED' if result else 'FAILED'} {_polygraphy_words(result)}" for name, result in outputs
    )
    return Answer(not bool(accuracy), told)


def _polygraphy_words(result: Any) -> str:
    if isinstance(result, bool):  # it compares no outputs of different shapes
        return "shapes differ"
    return f"max_abs_diff {result.max_absdiff:.3g}, max_rel_diff {result.max_reldiff:.3g}"


@contextlib.contextmanager
def _polygraphy_quiet() -> Iterator[None]:
    from polygraphy.logger import G_LOGGER

    with G_LOGGER.verbosity(G_LOGGER.CRITICAL + 1), np.errstate(all="ignore"):
        yield


def _polygraphy_dtype(array: NDArray[Any]) -> Any:
    return _tensor(array).dtype if array.dtype.name == "bfloat16" else array.dtype


def _for_polygraphy(array: NDArray[Any]) -> Any:
    """Return an array that Polygraphy takes: it knows bfloat16 as torch's only."""
    return _tensor(array) if array.dtype.name == "bfloat16" else array


# torch

TORCH_MAX_ABS, TORCH_MAX_REL = 5e-3, 1e-1
"""torch 2.13.0, torch/onnx/_internal/exporter/_core.py lines 1718 and 1725: literals there, so repeated here."""


def _torch_verify(question: Question) -> Answer:
    """What `torch.onnx.export(verify=True)` reports.

    Calls `VerificationInfo.from_tensors`, which `verify_onnx_program` does for every pair that `zip` gives it. NaN is
    not >= anything, so it passes. What raises is reported as a failure too (_core.py line 1705).
    """
    from torch.onnx.verification import VerificationInfo

    alarm, told = False, []
    for (name, actual), expected in zip(
        question.candidate.items(), question.reference.values(), strict=False
    ):
        try:
            info = VerificationInfo.from_tensors(name, expected=_tensor(expected), actual=_tensor(actual))
        except RuntimeError as error:
            return Answer(True, f"{name}: {str(error).partition(chr(10))[0]}")
        alarm |= info.max_abs_diff >= TORCH_MAX_ABS or info.max_rel_diff >= TORCH_MAX_REL
        told.append(f"{name}: max_abs_diff {info.max_abs_diff:.3g}, max_rel_diff {info.max_rel_diff:.3g}")
    return Answer(alarm, "; ".join(told))


def _assert_close(question: Question) -> Answer:
    """`torch.testing.assert_close` with the tolerances it has for the dtype; NaN equals nothing."""
    import torch

    candidate = {name: _tensor(array) for name, array in question.candidate.items()}
    reference = {name: _tensor(array) for name, array in question.reference.items()}
    try:
        torch.testing.assert_close(candidate, reference)
    except AssertionError as error:
        return Answer(True, " ".join(str(error).split()))
    return Answer(False, "close")


# optimum


class _OptimumConfig:
    """What `validate_model_outputs` asks of an OnnxConfig, told of this question."""

    torch_to_onnx_output_map: Mapping[str, str] = {}

    def __init__(self, question: Question) -> None:
        from optimum.exporters.onnx import OnnxConfig

        self.ATOL_FOR_VALIDATION = OnnxConfig.ATOL_FOR_VALIDATION
        self._inputs = question.inputs
        # Fixed axes: the shapes that the session tells are numbers.
        self.inputs: dict[str, dict[int, str]] = {name: {} for name in question.inputs}
        self.outputs: dict[str, dict[int, str]] = {name: {} for name in question.candidate}

    def generate_dummy_inputs(self, framework: str) -> dict[str, Any]:
        """The case's, where optimum would make its own."""
        assert framework == "pt"
        return {name: _tensor(array) for name, array in self._inputs.items()}

    def rename_ambiguous_inputs(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """None is ambiguous."""
        return inputs

    def generate_dummy_inputs_for_validation(
        self, inputs: dict[str, Any], names: list[str]
    ) -> dict[str, Any]:
        """The same to the session."""
        assert names == list(inputs)
        return inputs

    @contextlib.contextmanager
    def patch_model_for_export(self, model: object, *, model_kwargs: object) -> Iterator[None]:
        """Nothing to patch."""
        yield


def _optimum(question: Question) -> Answer:
    """`validate_model_outputs`, with a session and a model that give the outputs of the question.

    AtolError and OutputMatchError are warnings in optimum's exporter, with exit code 0: they count as alarms here.
    """
    from optimum.exporters.error_utils import AtolError, OutputMatchError, ShapeError
    from optimum.exporters.onnx import convert

    session = SimpleNamespace(
        get_inputs=lambda: [SimpleNamespace(name=name) for name in question.inputs],
        get_outputs=lambda: [
            SimpleNamespace(name=name, shape=array.shape) for name, array in question.candidate.items()
        ],
        run=lambda names, _: [question.candidate[name] for name in names],
    )

    def reference_model(**_: Any) -> dict[str, Any]:
        return {name: _tensor(array) for name, array in question.reference.items()}

    quiet = mock.patch.object(convert.logger, "error")  # it logs what it then raises
    with mock.patch.object(convert, "PickableInferenceSession", return_value=session), quiet:
        try:
            convert.validate_model_outputs(
                config=_OptimumConfig(question),
                reference_model=reference_model,
                onnx_model=Path("candidate.onnx"),
                onnx_named_outputs=list(question.candidate),
                use_subprocess=False,
            )
        except (AtolError, OutputMatchError, ShapeError) as error:
            return Answer(True, f"{type(error).__name__}: {' '.join(str(error).split())}")
    return Answer(False, "all values close")


# onnx-diagnostic

DISCREPANCIES_ATOL, DISCREPANCIES_RTOL = 1e-4, 0.1
"""onnx-diagnostic 0.9.3, the defaults of `check_discrepancies` in export/api.py line 742 (lines 859 to 864 apply them)
and in investigate/input_observer.py line 1167 (lines 1251 to 1256)."""
SIDE_BY_SIDE_ATOL, SIDE_BY_SIDE_RTOL = 1e-5, 1e-5
"""onnx-diagnostic 0.9.3, the defaults of the command `sbs` in _command_lines_parser.py lines 1215 and 1221, applied in
torch_onnx/sbs.py line 78: only with `-v 2` or more, and printed only."""


def _discrepancies(question: Question) -> Answer:
    """`check_discrepancies`, but for its `isinstance(diff["abs"], float)`, which is left out in the peer's favour.

    `max_diff` begins its maximum over several outputs with the integer 0, so that outputs equal in every bit have
    an `abs` that is no float, and `SUCCESS` False. That is a slip, not a tolerance; the words tell it.
    """
    diff = _max_diff(question)
    told = _diff_words(diff)
    if not isinstance(diff["abs"], float):
        told += " (equal; SUCCESS itself would be False, abs being an int)"
    return Answer(not (diff["abs"] < DISCREPANCIES_ATOL and diff["rel"] < DISCREPANCIES_RTOL), told)


def _side_by_side(question: Question) -> Answer:
    diff = _max_diff(question)
    close = diff["abs"] <= SIDE_BY_SIDE_ATOL and diff["rel"] <= SIDE_BY_SIDE_RTOL
    return Answer(not close, _diff_words(diff))


def _max_diff(question: Question) -> Mapping[str, Any]:
    """Return what `max_diff` finds; it makes 1e10 of NaN first, so that NaN on both sides is no difference."""
    from onnx_diagnostic.helpers import max_diff

    reference = [_tensor(array) for array in question.reference.values()]
    candidate = [_tensor(array) for array in question.candidate.values()]
    difference: Mapping[str, Any] = max_diff(reference, candidate, hist=[0.1, 0.01])
    return difference


def _diff_words(diff: Mapping[str, Any]) -> str:
    return f"max_abs_diff {diff['abs']:.3g}, max_rel_diff {diff['rel']:.3g}"


# FlashAttention

FLASH_FACTOR = 2
FLASH_SHIFT = 0.3
"""Dao-AILab/flash-attention, hopper/test_flash_attn.py at 01afd16d, test_flash_attn_output:
`fwd_atol = 2 * (out_ref + 0.3 - 0.3 - out_ref).abs().max().item()` and
`(out - out_ref).abs().max().item() <= rtol * (out_pt - out_ref).abs().max().item() + fwd_atol`, rtol = 2 without
softcap. tests/test_flash_attn.py, of version 2, has no fwd_atol. Both run in fp16 and bf16 only."""


def _flash_attention(question: Question) -> Answer:
    """The error is at most twice that of torch in the same dtype, plus the rounding of an addition at 0.3.

    `out_ref` is computed in higher precision and then rounded to the dtype of the output (`attention_ref` in
    hopper/test_util.py returns `output.to(dtype=dtype_og)`); so is the exact output here.
    """
    if question.exact is None:
        return Answer(None, "skipped: it needs the output in higher precision")
    alarm, told = False, []
    for name, array in question.candidate.items():
        actual, torch_s = _tensor(array), _tensor(question.reference[name])
        exact = _tensor(question.exact[name]).to(torch_s.dtype)
        if actual.shape != exact.shape:
            return Answer(True, f"{name}: shape {tuple(actual.shape)}, not {tuple(exact.shape)}")
        atol = 2 * _max_abs(exact + FLASH_SHIFT - FLASH_SHIFT - exact)
        error, allowed = _max_abs(actual - exact), FLASH_FACTOR * _max_abs(torch_s - exact) + atol
        # Its test asserts error <= allowed: NaN on either side fails.
        alarm |= not error <= allowed
        told.append(f"{name}: error {error:.3g}, allowed {allowed:.3g}")
    return Answer(alarm, "; ".join(told))


def _max_abs(tensor: Any) -> float:
    return float(tensor.abs().max().item())


def _tensor(array: NDArray[Any]) -> Any:
    """Return the array as a tensor; torch takes no bfloat16 of NumPy's."""
    import torch

    array = np.array(array, order="C")  # a copy: torch warns of arrays that must not be written
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


_CASE = "the case's"
PEERS = (
    Peer(
        "Polygraphy, comparison", "polygraphy", "Comparator.compare_accuracy",
        "atol 1e-5 or rtol 1e-5, either for each element", _CASE, _polygraphy_compare,
    ),
    Peer(
        "Polygraphy, run", "polygraphy", "Comparator.run, DataLoader, Comparator.compare_accuracy",
        "the same", "its own in [0, 1), every symbolic axis 1", _polygraphy_run,
    ),
    Peer(
        "Polygraphy, run --input-shapes", "polygraphy", "the same",
        "the same", "its own in [0, 1), the case's shapes", _polygraphy_run_shapes,
    ),
    Peer(
        "torch.onnx verify", "torch", "torch.onnx.verification.VerificationInfo.from_tensors",
        "max abs < 5e-3 and max rel < 1e-1", _CASE, _torch_verify,
    ),
    Peer(
        "torch.testing.assert_close", "torch", "torch.testing.assert_close",
        "atol 1e-5 + rtol 1.3e-6 (fp32), 1e-3 (fp16), 1.6e-2 (bf16)", _CASE, _assert_close,
    ),
    Peer(
        "optimum", "optimum-onnx", "optimum.exporters.onnx.convert.validate_model_outputs",
        "atol 1e-5 + rtol 1e-5", _CASE, _optimum,
    ),
    Peer(
        "onnx-diagnostic, check_discrepancies", "onnx-diagnostic", "onnx_diagnostic.helpers.max_diff",
        "max abs < 1e-4 and max rel < 0.1", _CASE, _discrepancies,
    ),
    Peer(
        "onnx-diagnostic, sbs", "onnx-diagnostic", "onnx_diagnostic.helpers.max_diff",
        "max abs <= 1e-5 and max rel <= 1e-5", _CASE, _side_by_side,
    ),
    Peer(
        "FlashAttention's rule", None, "rewritten",
        "twice torch's own error, plus twice the rounding at 0.3", _CASE, _flash_attention,
    ),
)  # fmt: skip
