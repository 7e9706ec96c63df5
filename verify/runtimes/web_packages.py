"""The npm packages of the JavaScript runtimes: pinned in js/package.json, kept in the user's cache."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from functools import cache
from importlib.resources import as_file, files
from pathlib import Path

from onnx_attest.errors import UsageError

FOLDER = "ONNX_ATTEST_WEB"
"""The environment variable that names another folder, whose node_modules are taken as they are: your own versions."""
COMMAND = "onnx-attest doctor --install web"
_NPM_S = 600


def folder() -> Path:
    """Return the folder whose node_modules has the packages."""
    if FOLDER in os.environ:
        return Path(os.environ[FOLDER])
    cache_home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache_home) / "onnx-attest" / "web"


def installed(package: str) -> str:
    """Return the version of a package, "" if it is not there."""
    try:
        text = (folder() / "node_modules" / package / "package.json").read_text(encoding="utf-8")
        return str(json.loads(text)["version"])
    except (OSError, ValueError, KeyError):
        return ""


def why_not_installed(package: str) -> str:
    """Return why a package cannot be used, "" if it can: it is there, and in the version that is pinned."""
    found, wanted = installed(package), pinned()[package]
    if not found:
        return f"the npm package {package} is not installed"
    if found != wanted and FOLDER not in os.environ:
        return f"{package} {found} is installed, and {wanted} is pinned"
    return ""


@cache
def pinned() -> dict[str, str]:
    """Return the version of each package that reports are made with."""
    text = files("onnx_attest.verify.runtimes").joinpath("js", "package.json").read_text(encoding="utf-8")
    return dict(json.loads(text)["dependencies"])


def install() -> Path:
    """Install the packages with npm, without any script of theirs, and return the folder.

    Raises:
        UsageError: there is no npm, or it fails: its last line.
    """
    npm = shutil.which("npm")
    if npm is None:
        raise UsageError("there is no npm: install Node.js, which brings it")
    target = folder()
    try:
        target.mkdir(parents=True, exist_ok=True)
        with as_file(files("onnx_attest.verify.runtimes").joinpath("js", "package.json")) as listed:
            shutil.copyfile(listed, target / "package.json")
    except OSError as error:
        raise UsageError(f"cannot write {target}: {error.strerror}") from error
    # onnxruntime-node's script would fetch a CUDA build; the CPU's is in the package.
    environment = {**os.environ, "ONNXRUNTIME_NODE_INSTALL": "skip"}
    command = [npm, "install", "--ignore-scripts", "--no-audit", "--no-fund", "--no-package-lock"]
    try:
        done = subprocess.run(  # noqa: S603 - the npm that the user has
            command, cwd=target, env=environment, capture_output=True, text=True, timeout=_NPM_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(f"npm install failed in {target}: {error}") from error
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()] or ["no message"]
        raise UsageError(f"npm install failed in {target}: {lines[0]}")
    return target
