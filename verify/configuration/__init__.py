"""Settings that a project keeps in `onnx-attest.toml`, or under `[tool.onnx-attest]` in its `pyproject.toml`.

Imports nothing but the standard library: the command line and pytest read it before anything else is loaded.
"""

from __future__ import annotations

from onnx_attest.verify.configuration.reading import Configuration, read_configuration

__all__ = ["Configuration", "read_configuration"]
