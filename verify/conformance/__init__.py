"""What each runtime makes of ONNX's own attention and softmax cases, and of cases beyond them: right, wrong, refused."""
