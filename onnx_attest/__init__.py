"""Verification of attention modules exported to ONNX, across runtimes."""

__version__ = "0.1.0"
