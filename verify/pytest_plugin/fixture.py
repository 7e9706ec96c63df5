"""What the fixture `onnx_attest` gives: a function that verifies one file, and fails or skips the test."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Unpack

import pytest

from onnx_attest.errors import UsageError
from onnx_attest.export.artifact import Artifact
from onnx_attest.models.entry import resolve_module
from onnx_attest.verify.api import Report, VerificationError, verify
from onnx_attest.verify.configuration import Configuration, read_configuration
from onnx_attest.verify.configuration.keys import PYTEST
from onnx_attest.verify.configuration.resolved import resolved
from onnx_attest.verify.engine import Plan
from onnx_attest.verify.known import built_in, read_known
from onnx_attest.verify.pytest_plugin import ABSENT
from onnx_attest.verify.pytest_plugin.joined import write_part
from onnx_attest.verify.pytest_plugin.settings import Settings, by_parameter, merged
from onnx_attest.verify.records import AnyRecord
from onnx_attest.verify.report.brief import brief
from onnx_attest.verify.runtimes.base import Tensors
from onnx_attest.verify.runtimes.configured import limited
from onnx_attest.verify.runtimes.registry import select, with_session
from onnx_attest.verify.workers.limits import MIB


@dataclass(frozen=True)
class Attest:
    """The fixture of one test.

    Attributes:
        node: the test.
        configuration: of pytest's root folder.
        options: of pytest's command line, by the names of settings.
        keep: takes the records of each verification, for the report of the session.
    """

    node: pytest.Item
    configuration: Configuration = field(repr=False)
    options: Mapping[str, Any] = field(repr=False)
    keep: Callable[[Sequence[AnyRecord]], None] = field(repr=False)

    def __call__(
        self,
        model: str | os.PathLike[str] | Artifact,
        *,
        against: Any = None,
        input_shapes: Mapping[str, Sequence[int]] | None = None,
        inputs: Tensors | None = None,
        **settings: Unpack[Settings],
    ) -> Report:
        """Verify one ONNX file, and return the report if it passed.

        Args:
            model: the path of an ONNX file, or what `onnx_attest.export.export` returned.
            against: the module that the file is to compute, itself, as an `Entry` or as `file.py:function`; or the path
                of the ONNX file that it was made from.
            input_shapes: instead of the sweep of sizes, by input name.
            inputs: instead of made inputs, arrays by input name.
            settings: the keys of docs/configuration.md, `runtimes` and `require` as lists of names.

        Raises:
            VerificationError: the run failed, errored or was inconclusive; the message has the findings.
            UsageError: the file cannot be read, or what was given does not fit it.

        Skips the test if none of the runtimes works here and none is required: the reason is theirs.
        """
        __tracebackhide__ = True
        own = {"against": against, "input_shapes": input_shapes, "inputs": inputs}
        call = {name: value for name, value in own.items() if value is not None} | settings
        try:
            holds = merged(self.node, self.configuration, self.options, call)
            report = self._verified(model, holds)
        except UsageError as error:  # one line says what is wrong: where it was noticed is no news
            raise error.with_traceback(None) from None
        self.keep(report.records)
        absent = self._absent(report)
        if report.verdict == "passed":
            return report
        if report.verdict == "inconclusive":
            if absent and not report.run.required and len(absent) == len(report.cells):
                pytest.skip("; ".join(absent))
            if holds.get("allow_inconclusive") and not _lacks_required(report):
                return report
        raise VerificationError(brief(report.records))

    def _verified(self, model: str | os.PathLike[str] | Artifact, holds: Mapping[str, Any]) -> Report:
        folder = self.configuration.folder
        required = select(holds["require"], folder) if holds["require"] else ()
        chosen = (*select(tuple(holds.get("runtimes", ())), folder), *required)
        memory = holds.get("memory_limit_mib")
        apart = limited(
            with_session(
                tuple({one.name: one for one in chosen}.values()),
                holds.get("session_options", {}),
                holds.get("custom_ops", ()),
            ),
            self.configuration,
            time_s=holds.get("time_limit_s"),
            memory_bytes=None if memory is None else int(memory * MIB),
        )
        plan = Plan(
            runtimes=apart,
            arithmetic=holds.get("arithmetic"),
            known=read_known(folder / holds["known"]) if "known" in holds else built_in(),
            fail_fast=holds.get("fail_fast", False),
            atol=holds.get("atol"),
            rtol=holds.get("rtol"),
            seed=holds.get("seed", 0),
            threads=holds.get("threads"),
            time_budget_s=holds.get("time_budget_s"),
            thorough=holds.get("thorough", False),
            relations_only=holds.get("relations_only", False),
            rows=holds.get("rows"),
            configuration=resolved(PYTEST, by_parameter(holds), self.configuration),
        )
        return verify(
            model if isinstance(model, Artifact) else Path(model),
            require=tuple(one.name for one in required),
            against=_module(holds.get("against")),
            input_shapes=holds.get("input_shapes"),
            inputs=holds.get("inputs"),
            plan=plan,
        )

    def _absent(self, report: Report) -> list[str]:
        """Return which runtimes did not run at all and why, and note it for the end of the session."""
        found = [
            f"{cell.runtime} did not run: {cell.reason}"
            for cell in report.cells
            if cell.verdict == "skipped" and cell.case is None
        ]
        self.node.user_properties += [(ABSENT, text) for text in found]
        return found


def attest(request: pytest.FixtureRequest, parts: Path | None) -> Attest:
    """Return the fixture of a test; `parts` is the folder for its records, None if there is to be no report.

    Raises:
        UsageError: a configuration that cannot be.
    """
    config, item = request.config, request.node
    number = itertools.count()

    def keep(records: Sequence[AnyRecord]) -> None:
        if parts is not None:
            place = request.session.items.index(item)
            worker = os.environ.get("PYTEST_XDIST_WORKER", "main")
            write_part(parts / f"{place:07}-{next(number):05}-{worker}.jsonl", records)

    options = {
        "runtimes": config.option.onnx_attest_runtime,
        "require": config.option.onnx_attest_require,
        "seed": config.option.onnx_attest_seed,
        "threads": config.option.onnx_attest_threads,
        "allow_inconclusive": config.option.onnx_attest_allow_inconclusive,
    }
    return Attest(item, read_configuration(config.rootpath), options, keep)


def _lacks_required(report: Report) -> bool:
    return any(finding.code in ("OA804", "OA205") for finding in report.findings)


def _module(against: Any) -> Any:
    """Return a module named as the command line does, anything else as it is."""
    if not isinstance(against, str) or against.endswith(".onnx"):
        return against
    return resolve_module(against)
