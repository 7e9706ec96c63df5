"""Runtimes are entry points: a broken plugin is listed with its error and hides nobody, and looking imports nothing."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from onnx_attest.errors import UsageError
from onnx_attest.verify.runtimes import registry
from onnx_attest.verify.runtimes.base import Runtime
from onnx_attest.verify.runtimes.broken import BrokenRuntime
from onnx_attest.verify.runtimes.reference import ReferenceRuntime
from onnx_attest.verify.runtimes.registry import ORDER, registered, select

ROOT = Path(__file__).parent.parent
GOOD = """
from onnx_attest.verify.runtimes.reference import ReferenceRuntime

def mine():
    return ReferenceRuntime("mine")

ready = ReferenceRuntime("ready")
taken = ReferenceRuntime("torch")
number = 3
no_runtime = lambda: "text"
misnamed = lambda: ReferenceRuntime("another")
def exits():
    raise SystemExit("bye")
"""


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Install a distribution with these entry points for this test: name = attribute of its module."""

    def install(name: str = "somebody", source: str = GOOD, **points: str) -> None:
        folder = tmp_path / name
        info = folder / f"{name}-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        lines = [f"{point.replace('_', '-')} = {name}_runtimes:{value}" for point, value in points.items()]
        (info / "entry_points.txt").write_text("\n".join(["[onnx_attest.runtimes]", *lines]))
        (folder / f"{name}_runtimes.py").write_text(source)
        monkeypatch.syspath_prepend(str(folder))
        forget()

    yield install
    monkeypatch.undo()
    forget()


def forget() -> None:
    registry._points.cache_clear()
    registry._runtime.cache_clear()
    sys.modules.pop("somebody_runtimes", None)


def test_built_in_runtimes_are_entry_points_in_the_order_of_the_reports():
    """If this fails after a pull: python -m pip install --no-deps --editable ."""
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    assert set(listed["onnx_attest.runtimes"]) == set(ORDER)
    assert tuple(runtime.name for runtime in registered()[: len(ORDER)]) == ORDER


def test_built_in_runtimes_load():
    broken = [runtime for runtime in registered() if isinstance(runtime, BrokenRuntime)]
    assert broken == []


def test_loading_all_of_them_imports_no_third_party_runtime():
    code = (
        "import sys; from onnx_attest.verify.runtimes.registry import registered; registered();"
        "print(*{'torch', 'onnxruntime', 'openvino', 'onnx', 'nxrt_ep_cpu'} & set(sys.modules))"
    )
    found = subprocess.run([sys.executable, "-c", code], text=True, capture_output=True, check=True)
    assert found.stdout.strip() == ""


def test_runtimes_of_others_come_after_ours(plugin):
    plugin(ready="ready", mine="mine")
    assert tuple(runtime.name for runtime in select()) == (*ORDER, "mine", "ready")
    assert select(("mine",)) == (ReferenceRuntime("mine"),)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("number", "raised TypeError: 'int' object is not callable"),
        ("no_runtime", "gives str, which is no Runtime"),
        ("misnamed", "gives a runtime that calls itself 'another'"),
        ("exits", "raised SystemExit: bye"),
        ("absent", "raised AttributeError: module 'somebody_runtimes' has no attribute 'absent'"),
    ],
)
def test_entry_point_that_gives_no_runtime_is_listed_with_its_error(plugin, value, words):
    plugin(bad=value, mine="mine")
    bad, mine = select(("bad", "mine"))
    assert words in bad.availability().reason
    assert "somebody_runtimes" in bad.availability().reason
    assert "of somebody" in bad.availability().reason
    assert mine.availability().usable


def test_module_that_raises_on_import_is_listed_with_its_error(plugin):
    plugin(source="raise RuntimeError('half\\ninstalled')", bad="anything")
    assert [runtime.name for runtime in select()] == [*ORDER, "bad"]
    (bad,) = select(("bad",))
    assert "raised RuntimeError: half installed" in bad.availability().reason


def test_name_that_is_taken_goes_to_the_built_in_one(plugin):
    plugin(torch="taken")
    assert type(select(("torch",))[0]).__name__ == "TorchRuntime"
    (other,) = select(("torch of somebody",))
    assert "has the name of another runtime, torch" in other.availability().reason


def test_choosing_some_does_not_load_the_others(plugin):
    plugin(source="raise SystemExit('loaded')", bad="anything")
    assert [runtime.name for runtime in select(("onnx-reference",))] == ["onnx-reference"]
    assert "somebody_runtimes" not in sys.modules


def test_broken_plugin_is_skipped_in_a_verification_and_fails_where_required(plugin, command, onnx_file):
    plugin(source="raise RuntimeError('half installed')", bad="anything")
    file = onnx_file("double (float[n, 4] x) => (float[n, 4] y) { y = Add(x, x) }")
    assert command("verify", file, "--runtime", "onnx-reference", "--runtime", "bad").code == 0
    answer = command("verify", file, "--runtime", "onnx-reference", "--require", "bad")
    assert answer.code == 3
    assert "half installed" in answer.out


@pytest.mark.slow
def test_doctor_lists_a_broken_plugin(plugin, command):
    plugin(source="raise RuntimeError('half installed')", bad="anything")
    answer = command("doctor")
    assert "half installed" in answer.out
    assert "onnx-reference" in answer.out


def test_no_entry_point_at_all_says_what_to_do(monkeypatch):
    monkeypatch.setattr(registry, "_points", dict)
    with pytest.raises(UsageError, match="no runtime is registered: install onnx-attest again"):
        registered()


def test_adapters_keep_the_protocol():
    assert all(isinstance(runtime, Runtime) for runtime in registered())
