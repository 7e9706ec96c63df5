"""Starts `runtime.py` under an interpreter that has no onnx_attest: run by its path, it maps this copy of the package.

Only the package becomes importable, not what is installed beside it: NumPy and the runtime are the interpreter's own.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType


class Mapped(MetaPathFinder):
    """Finds packages whose names do not follow from their folders."""

    def __init__(self, packages: Mapping[str, str]) -> None:
        self._packages = packages

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return where a package is, None if it is none of those."""
        if fullname not in self._packages:
            return None
        folder = self._packages[fullname]
        init = Path(folder) / "__init__.py"
        return importlib.util.spec_from_file_location(fullname, init, submodule_search_locations=[folder])


def main() -> None:
    """Load the packages that the parent names, and become the worker."""
    if sys.path and Path(sys.path[0]).resolve() == Path(__file__).resolve().parent:
        del sys.path[0]  # the folder of this script: its modules are not to be found by their bare names
    sys.meta_path.insert(0, Mapped(json.loads(sys.argv[1])["packages"]))
    from onnx_attest.verify.workers.runtime import main as work

    work()


if __name__ == "__main__":
    main()
