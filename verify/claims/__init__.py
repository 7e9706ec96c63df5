"""The chapter's statements as experiments, each with a number, on every runtime."""

from onnx_attest.verify.claims.statements import STATEMENTS

__all__ = ["STATEMENTS"]
