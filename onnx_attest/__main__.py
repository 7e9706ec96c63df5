"""`python -m onnx_attest`: the command line without an installed script."""

from onnx_attest.verify.guard import main

if __name__ == "__main__":
    main()
