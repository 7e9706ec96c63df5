"""From a name on the command line to a module: whatever a user's file does ends in one line that names it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from onnx_attest.errors import UsageError
from onnx_attest.export.lower import refuse_unsteady
from onnx_attest.models import CATALOGUE, Contract, Entry, TensorSpec, build_module, resolve

HEAD = """
from __future__ import annotations
import sys
import torch
from torch import nn
from onnx_attest.models import Contract, Entry, TensorSpec

class Double(nn.Module):
    def forward(self, x):
        return 2 * x

def entry(build, name="mine"):
    inputs, outputs = (TensorSpec("x", ("n", 4)),), (TensorSpec("y", ("n", 4), role="output"),)
    return Entry(name, "of a user", Contract(inputs, outputs, {"n": 3}), build, ("decomposed",))
"""
CONTRACT = Contract((TensorSpec("x", ("n", 4)),), (TensorSpec("y", ("n", 4), role="output"),), {"n": 3})


@pytest.fixture
def user(tmp_path) -> Callable[[str], str]:
    """Write a user's file that ends in this text and return the reference to its `factory`."""

    def write(text: str) -> str:
        file = tmp_path / "user.py"
        file.write_text(f"{HEAD}\n{text}\n")
        return f"{file}:factory"

    return write


def module_of(forward: str) -> str:
    """Return a user's text with a module of this forward."""
    return f"class Mine(nn.Module):\n    def forward(self, x):\n        {forward}\nfactory = entry(lambda: Mine().eval())"


# --- finding the entry ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [entry.name for entry in CATALOGUE])
def test_catalogue_name(name):
    assert resolve(name).name == name


def test_unknown_name_lists_the_catalogue_and_the_other_form():
    with pytest.raises(
        UsageError, match=r"unknown model 'nope'; the catalogue has sdpa, .*path/to/file\.py:factory"
    ):
        resolve("nope")


@pytest.mark.parametrize("text", ["factory = entry(Double)", "def factory():\n    return entry(Double)"])
def test_entry_and_function_that_returns_one(user, text):
    reference = user(text)
    entry = resolve(reference)
    assert (entry.name, entry.reference) == ("mine", reference)


def test_module_on_the_path(user, tmp_path, monkeypatch):
    user("factory = entry(Double)")
    monkeypatch.syspath_prepend(tmp_path)
    assert resolve("user:factory").name == "mine"
    del sys.modules["user"]


def test_dataclass_in_a_users_file_finds_its_module(user):
    text = "from dataclasses import dataclass\n@dataclass\nclass Config:\n    d: int = 4\nfactory = entry(Double)"
    assert resolve(user(text)).name == "mine"


def test_file_that_failed_leaves_no_module_behind(user):
    with pytest.raises(UsageError):
        resolve(user("1 / 0"))
    assert "_onnx_attest_user_user" not in sys.modules


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def factory(:", "importing .*user.py:factory raised SyntaxError"),
        ("1 / 0", "importing .*user.py:factory raised ZeroDivisionError"),
        ("import no_such_package", "importing .*user.py:factory raised ModuleNotFoundError: No module named"),
        ("open('/nowhere/weights')", "importing .*user.py:factory raised FileNotFoundError"),
        ("sys.exit(0)", "importing .*user.py:factory raised SystemExit: 0"),
        ("other = 1", "has no 'factory'; name an Entry in it, or a function that returns one"),
        ("factory = None", "has no 'factory'"),
        ("def factory(): raise RuntimeError('first line\\nsecond')", "factory raised RuntimeError: first line second"),
        ("def factory(): sys.exit(0)", "factory raised SystemExit: 0"),
        ("def factory(x): return x", "factory raised TypeError: .*missing 1 required positional argument"),
        ("def factory(): return Double()", "gives Double, not an onnx_attest.models.Entry"),
        ("factory = Double", "gives Double, not an onnx_attest.models.Entry"),
        ("factory = 5", "gives int, not an onnx_attest.models.Entry"),
        ("factory = entry(None)", "build must be a function"),
        ("factory = Entry('mine', 's', None, Double)", "contract must be a Contract, got NoneType"),
        ("TensorSpec('x', ('n',), 'float33')", "x: unknown dtype 'float33'; there are .*float32"),
        ("TensorSpec('x', ('n', -1))", "x: a negative size"),
        ("Contract((TensorSpec('x', ('n',)),), (), {'n': 0})", "traced sizes must be 1 or more"),
    ],
)  # fmt: skip
def test_users_file_that_gives_no_entry(user, text, message):
    with pytest.raises(UsageError, match=message):
        resolve(user(text))


@pytest.mark.parametrize(
    "reference", ["nowhere.py:factory", "no_such_package:factory", ":factory", ":", "..:factory", ".a:factory", "json:", "a.py:b:c"]
)  # fmt: skip
def test_reference_to_nothing(reference):
    with pytest.raises(UsageError):
        resolve(reference)


def test_missing_file_and_its_form_are_named():
    with pytest.raises(UsageError, match=r"no file nowhere\.py; give path/to/file\.py:factory"):
        resolve("nowhere.py:factory")


def test_file_name_that_is_too_long():
    with pytest.raises(UsageError, match="no file"):
        resolve("n" * 300 + ".py:factory")


# --- names, which become files ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["mha", "my-model_2.1+fp16", "A"])
def test_name_fit_for_a_file(name):
    assert Entry(name, "", CONTRACT, torch.nn.Identity).name == name


@pytest.mark.parametrize(
    "name", ["../x", "/tmp/x", "a/b", "a\\b", "", ".", "..", ".hidden", "-o", "a b", "a\nb", "a\0b", "ä", 5]
)
def test_name_that_could_leave_the_folder_is_refused(name):
    with pytest.raises(ValueError, match="the stem of its files"):
        Entry(name, "", CONTRACT, torch.nn.Identity)


def test_name_with_a_slash_writes_nothing_outside_the_folder(command, user, tmp_path):
    reference = user("factory = entry(Double, '../escaped')")
    before = sorted(tmp_path.rglob("*.py"))
    command("export", reference, "-o", tmp_path / "out").assert_refused("'../escaped'", "letters, digits")
    assert [path for path in tmp_path.rglob("*") if path.suffix in (".onnx", ".json")] == []
    assert sorted(tmp_path.rglob("*.py")) == before


# --- building ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "def build(): raise ValueError('bad weights')",
            "mine: building the module raised ValueError: bad weights",
        ),
        ("def build(): sys.exit(0)", "mine: building the module raised SystemExit: 0"),
        ("def build(x): return x", "mine: building the module raised TypeError"),
        ("def build(): return 5", r"mine: build\(\) returned int, not a torch.nn.Module"),
    ],
)
def test_module_that_cannot_be_built(user, text, message):
    with pytest.raises(UsageError, match=message):
        build_module(resolve(user(f"{text}\nfactory = entry(build)")))


def test_missing_torch_is_said_with_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(UsageError, match=r"building mha needs torch: .*install onnx-attest\[torch\]"):
        build_module(resolve("mha"))


def test_export_without_torch_is_said_in_one_line(command, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    command("export", "mha", "-o", tmp_path).assert_refused("onnx-attest[torch]")


# --- running it once --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("forward", "words"),
    [
        ("raise RuntimeError('in forward')", ["mine: forward raised RuntimeError: in forward", "the inputs were x (3, 4)"]),
        ("sys.exit(0)", ["mine: forward raised SystemExit: 0"]),
        ("return self.forward(x)", ["mine: forward raised RecursionError"]),
        ("return object()", ["outputs of a file are tensors", "output is of type object"]),
        ("return None", ["output is of type NoneType"]),
        ("return ()", ["it returned nothing"]),
        ("return x, (x, x)", ["of 1 output", "is not among the 3 outputs", "output_0, output_1_0, output_1_1"]),
        ("return x + torch.rand_like(x)", ["output 0 differs from itself by", "draws random numbers", "OA106"]),
        ("self.n = getattr(self, 'n', 0) + 1; return x[: self.n]", ["differs from itself in its shape", "keeps a state"]),
        ("self.n = getattr(self, 'n', 0) + 1; return (x,) * self.n", ["gave 1 and 2 outputs"]),
    ],
)  # fmt: skip
def test_module_that_cannot_be_verified(command, user, tmp_path, forward, words):
    command("export", user(module_of(forward)), "-o", tmp_path / "out").assert_refused(*words)
    assert not (tmp_path / "out").exists()


def test_forward_of_other_arguments(command, user, tmp_path):
    text = module_of("return x").replace("self, x", "self, x, mask")
    command("export", user(text), "-o", tmp_path).assert_refused(
        "missing 1 required positional argument: 'mask'"
    )


def test_module_in_training_mode_differs_from_itself(command, user, tmp_path):
    """K12, pytorch/pytorch#109532: dropout is active on the torch side."""
    reference = user("factory = entry(lambda: nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)))")
    command("export", reference, "-o", tmp_path / "out").assert_refused(
        "mine: output 0 differs from itself", "training mode: call .eval()", "OA106"
    )
    assert not (tmp_path / "out").exists()


def test_same_module_in_evaluation_mode_does_not():
    module = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.5)).eval()
    refuse_unsteady(module, {"input": torch.ones(3, 4)})


def test_nan_at_the_same_place_is_no_difference():
    class Nan(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x / x

    refuse_unsteady(Nan(), {"x": torch.zeros(3, 4)})


def test_unknown_variant_of_an_entry_is_said(command, user, tmp_path: Path):
    reference = user(
        "from dataclasses import replace\nfactory = replace(entry(Double), variants=('decomposd',))"
    )
    command("export", reference, "-o", tmp_path).assert_refused("unknown variant decomposd", "decomposed")
