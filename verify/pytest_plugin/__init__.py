"""The pytest plugin: the fixture `onnx_attest` verifies a file and fails the test with the findings (docs/pytest.md).

pytest imports this whenever it starts, in any project: nothing but the standard library and pytest may be imported
here at the top, and the verifier only by a test that uses the fixture.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from onnx_attest.verify.pytest_plugin.fixture import Attest

_PARTS = pytest.StashKey[Path]()
"""The folder that each process writes the records of its verifications to."""
_SAID = pytest.StashKey[str]()
"""What became of the report."""
_HANDED = "onnx_attest_parts"
"""Under this name a worker of pytest-xdist is told the folder."""
ABSENT = "onnx_attest_absent"
"""A property of a test: a runtime that did not run in it, and why."""
MARKER = "onnx_attest"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    group = parser.getgroup("onnx-attest", "verification of ONNX files")
    add = group.addoption
    add(
        "--onnx-attest-runtime",
        action="append",
        metavar="NAME",
        help="a runtime to verify on, where a test names none (repeatable)",
    )
    add(
        "--onnx-attest-require",
        action="append",
        metavar="NAME",
        help="a runtime that every verification also runs on, and fails without (repeatable)",
    )
    add(
        "--onnx-attest-report",
        metavar="DIR",
        help="write one report of all verifications of the session to this folder",
    )
    add("--onnx-attest-seed", type=int, metavar="N", help="seed of all made inputs, where a test gives none")
    add(
        "--onnx-attest-threads",
        type=int,
        metavar="N",
        help="threads of each runtime, where a test gives none",
    )
    add("--onnx-attest-allow-inconclusive", action="store_true", default=None, help="let a test pass in which nothing could be concluded")  # fmt: skip


def pytest_configure(config: pytest.Config) -> None:
    """Add the marker; refuse a report that cannot be written before any test runs."""
    config.addinivalue_line(
        "markers",
        f"{MARKER}(**settings): what the fixture onnx_attest of this test, class or module is called with by default",
    )
    handed = getattr(config, "workerinput", {}).get(_HANDED)
    if handed:
        config.stash[_PARTS] = Path(handed)
    elif config.option.onnx_attest_report and not hasattr(config, "workerinput"):
        from onnx_attest.errors import UsageError
        from onnx_attest.verify.report.folder import refuse_unwritable

        try:
            refuse_unwritable(_folder(config))
        except UsageError as error:
            raise pytest.UsageError(f"--onnx-attest-report: {error}") from error
        config.stash[_PARTS] = Path(tempfile.mkdtemp(prefix="onnx-attest-parts."))


def pytest_unconfigure(config: pytest.Config) -> None:
    """Remove the parts, whose report stands."""
    if _PARTS in config.stash and not hasattr(config, "workerinput"):
        shutil.rmtree(config.stash[_PARTS], ignore_errors=True)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell a worker of pytest-xdist where its parts go."""
    if _PARTS in node.config.stash:
        node.workerinput[_HANDED] = str(node.config.stash[_PARTS])


@pytest.fixture(scope="session")
def _onnx_attest_processes() -> Iterator[None]:
    """Keep the processes of the runtimes for the session: each runtime is imported once."""
    from onnx_attest.verify.runtimes.isolated import kept

    with kept():
        yield


@pytest.fixture
def onnx_attest(request: pytest.FixtureRequest, _onnx_attest_processes: None) -> Attest:
    """Verify an ONNX file: `onnx_attest("model.onnx", runtimes=["ort-cpu"], against=module)`."""
    from onnx_attest.errors import UsageError
    from onnx_attest.verify.pytest_plugin.fixture import attest

    try:
        return attest(request, request.config.stash.get(_PARTS, None))
    except UsageError as error:
        pytest.fail(str(error), pytrace=False)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Join what all processes wrote to one report."""
    config = session.config
    if _PARTS not in config.stash or hasattr(config, "workerinput"):
        return
    from onnx_attest.errors import UsageError
    from onnx_attest.verify.pytest_plugin.joined import write_joined

    arguments = ("pytest", *map(str, config.invocation_params.args))
    try:
        config.stash[_SAID] = write_joined(config.stash[_PARTS], _folder(config), arguments)
    except UsageError as error:
        config.stash[_SAID] = f"no report: {error}"
        session.exitstatus = session.exitstatus or pytest.ExitCode.INTERNAL_ERROR


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Say which runtimes did not run, and where the report is."""
    absent: dict[str, set[str]] = {}
    for reports in terminalreporter.stats.values():
        for report in reports:
            for name, value in getattr(report, "user_properties", ()):
                if name == ABSENT:
                    absent.setdefault(str(value), set()).add(report.nodeid)
    lines = [
        f"in {len(tests)} {'test' if len(tests) == 1 else 'tests'}: {text}" for text, tests in absent.items()
    ]
    lines += filter(None, [config.stash.get(_SAID, "")])
    if lines:
        terminalreporter.section("onnx-attest")
        for line in lines:
            terminalreporter.line(line)


def _folder(config: pytest.Config) -> Path:
    return config.invocation_params.dir / str(config.option.onnx_attest_report)
