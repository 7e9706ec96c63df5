"""Every softmax and every attention of an ONNX graph, however it is written; nothing is run."""
