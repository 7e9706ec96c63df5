"""Faults of known class and size, put into a copy of an ONNX graph: what a verifier has to catch."""
