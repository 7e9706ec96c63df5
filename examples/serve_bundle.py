"""Serve a bundle of `onnx-attest deploy`: opened only if every byte is what it was, on a runtime that it was verified on.

    onnx-attest deploy attention.onnx -o bundle
    python serve_bundle.py bundle inputs.npz outputs.npz

Needs `pip install "onnx-attest[cpu]"` where it runs, and no torch. examples/deploy.py does without a bundle and without
onnx-attest; examples/browser/ loads a bundle in a page.

Change: RUNTIME, one of those that CARD.md names, and BUNDLE, the digest that `deploy` printed: digests inside a folder say
that it is whole, this one says that it is yours.
"""

from __future__ import annotations

import sys
from pathlib import Path
from zipfile import BadZipFile

import numpy as np

from onnx_attest.errors import UsageError
from onnx_attest.export.bundle import load

RUNTIME = "ort-cpu"
BUNDLE = ""


def main(folder: Path, inputs: Path, outputs: Path) -> int:
    """Run the bundle's file on inputs of a file, and write the outputs."""
    try:
        bundle = load(folder)
        if BUNDLE not in ("", bundle.name):
            raise UsageError(f"{folder} is the bundle {bundle.name}, not {BUNDLE}")
        session = bundle.session(RUNTIME)
        names = [output.name for output in bundle.about.outputs]
        with np.load(inputs) as given:
            results = session.run(names, dict(given))
        np.savez(outputs, **dict(zip(names, results, strict=True)))
    except (UsageError, OSError, ValueError, BadZipFile) as error:
        print(f"not served: {' '.join(str(error).split())}", file=sys.stderr)
        return 1
    print(f"served {bundle.name[:12]} on {', '.join(session.get_providers())}: {', '.join(names)}")
    return 0


if __name__ == "__main__":
    if len(sys.argv) != 4:
        print(__doc__, file=sys.stderr)
        sys.exit(2)
    sys.exit(main(*map(Path, sys.argv[1:])))
