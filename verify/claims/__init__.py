"""The chapter's statements as experiments, each with a number, on every runtime."""

from onnx_attest.verify.claims.statements import CLAIMS, STATEMENTS

__all__ = ["CLAIMS", "STATEMENTS"]
