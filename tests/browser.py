"""Chromium and axe-core for the tests of the page; both are here or the tests say what is missing."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from onnx_attest.verify.runtimes.chromium import START_S, Chromium


def opened() -> Iterator[Chromium]:
    """Yield a browser, and end it."""
    found = [shutil.which(name) for name in ("chromium", "chromedriver")]
    if None in found:
        pytest.skip("chromium and chromedriver are not both here")
    browser = Chromium(str(found[0]), str(found[1]), ("--window-size=1440,1000",))
    yield browser
    browser.close()


def axe() -> str:
    """Return axe-core's script, which `make axe` puts into the cache."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    file = cache / "onnx-attest" / "axe" / "node_modules" / "axe-core" / "axe.min.js"
    if not file.is_file():
        pytest.skip("axe-core is not here: make axe")
    return file.read_text(encoding="utf-8")


def keys(browser: Chromium, *pressed: str) -> None:
    """Press keys, one after another."""
    steps = [{"type": kind, "value": key} for key in pressed for kind in ("keyDown", "keyUp")]
    actions = {"actions": [{"type": "key", "id": "keyboard", "actions": steps}]}
    browser.call("POST", "/actions", actions, time_limit_s=START_S)


def complaints(browser: Chromium) -> list[str]:
    """Return what the browser's console holds."""
    log = browser.call("POST", "/se/log", {"type": "browser"}, time_limit_s=START_S)
    return [entry["message"] for entry in log if entry["level"] in ("SEVERE", "WARNING")]
