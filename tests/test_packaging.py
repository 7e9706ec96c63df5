"""The installed package is the tree: folders are mapped by hand, so nothing but a test notices a missing one."""

from __future__ import annotations

import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import onnx_attest

ROOT = Path(__file__).parent.parent
FOLDERS = {"onnx_attest": "onnx_attest", "models": "onnx_attest.models", "export": "onnx_attest.export", "verify": "onnx_attest.verify"}  # fmt: skip


def packages_in_tree() -> set[str]:
    """Every folder with an __init__.py, under the name it is imported by."""
    found = set()
    for folder, name in FOLDERS.items():
        for init in (ROOT / folder).rglob("__init__.py"):
            parts = init.parent.relative_to(ROOT / folder).parts
            found.add(".".join((name, *parts)))
    return found


def test_every_package_is_listed():
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    assert set(listed) == packages_in_tree()


def test_every_folder_with_code_is_a_package():
    for folder in FOLDERS:
        for file in (ROOT / folder).rglob("*.py"):
            assert (file.parent / "__init__.py").exists(), f"{file} is in no package"


def test_wheel_holds_every_module_and_data_file(tmp_path):
    build = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--wheel-dir",
        str(tmp_path),
        str(ROOT),
    ]
    subprocess.run(build, check=True, cwd=tmp_path)
    (wheel,) = tmp_path.glob("*.whl")
    inside = set(zipfile.ZipFile(wheel).namelist())
    assert {"onnx_attest/verify/known.toml", "onnx_attest/py.typed"} <= inside
    for folder, name in FOLDERS.items():
        for file in (ROOT / folder).rglob("*.py"):
            path = Path(name.replace(".", "/"), file.relative_to(ROOT / folder))
            assert path.as_posix() in inside
    assert not {path.split("/")[0] for path in inside} & {"models", "export", "verify", "tests"}


def test_importing_the_root_names_a_version():
    assert onnx_attest.__version__ == "0.1.0"


def test_constraints_fit_the_ranges():
    """A pin outside pyproject's own range would make `make test` fail at the install, on a fresh machine only."""
    from packaging.requirements import Requirement

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = dict(line.split("==") for line in lines if line and not line.startswith("#"))
    pins = {name.replace("_", "-").lower(): version for name, version in pins.items()}
    extras = (text for group in project["optional-dependencies"].values() for text in group)
    for text in (*project["dependencies"], *extras):
        requirement = Requirement(text)
        pin = pins.get(requirement.name.replace("_", "-").lower())
        assert pin is None or requirement.specifier.contains(pin), f"{text} does not allow {pin}"
