"""What people need to verify the session they really run: options, inputs by a function, a budget of time."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from onnx_attest.verify import verify
from onnx_attest.verify.engine import Plan
from onnx_attest.verify.runtimes.onnxruntime import OrtRuntime
from onnx_attest.verify.runtimes.registry import select, with_session

MODEL = "g (float[n, 4] x) => (float[n, 4] y) { y = Tanh (x) }"


def test_session_options_reach_the_session():
    (runtime,) = with_session(
        select(("ort-cpu",)),
        {"intra_op_num_threads": "1", "graph_optimization_level": "ORT_ENABLE_BASIC", "session.set_denormal_as_zero": "1"},
        (),
    )  # fmt: skip
    options = runtime._options(None)
    assert options.intra_op_num_threads == 1
    assert options.graph_optimization_level.name == "ORT_ENABLE_BASIC"
    assert options.get_session_config_entry("session.set_denormal_as_zero") == "1"


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("no_such_thing=1", "ONNX Runtime has no 'no_such_thing'"),
        ("intra_op_num_threads=many", "intra_op_num_threads=many"),
        ("enable_profiling", "not of the form key=value"),
        ("graph_optimization_level=7", "give one of ORT_DISABLE_ALL, "),
    ],
)
def test_an_option_that_is_none_is_one_line_and_2(command, onnx_file, option, message):
    answer = command("verify", onnx_file(MODEL), "--runtime", "ort-cpu", "--session-option", option)
    assert answer.code == 2
    assert message in answer.err


def test_options_of_a_session_need_onnx_runtime(command, onnx_file):
    answer = command(
        "verify",
        onnx_file(MODEL),
        "--runtime",
        "onnx-reference",
        "--session-option",
        "intra_op_num_threads=1",
    )
    assert (answer.code, "none of the runtimes named is" in answer.err) == (2, True)


def test_a_library_that_does_not_load_is_an_error_of_the_runtime(command, onnx_file, tmp_path):
    library = tmp_path / "library.so"
    library.write_text("no library")
    answer = command("verify", onnx_file(MODEL), "--runtime", "ort-cpu", "--custom-ops", str(library))
    assert answer.code == 1
    assert "library.so" in answer.out


def test_a_library_that_does_not_exist_is_one_line_and_2(command, onnx_file):
    answer = command(
        "verify", onnx_file(MODEL), "--runtime", "ort-cpu", "--custom-ops", "/no/such/library.so"
    )
    assert (answer.code, "there is no file /no/such/library.so" in answer.err) == (2, True)


def test_cases_that_there_was_no_time_for_are_skipped_and_said(command, onnx_file):
    answer = command("verify", onnx_file(MODEL), "--runtime", "ort-cpu", "--time-budget", "0")
    assert answer.code == 3
    assert "not begun within the time budget of 0 s" in " ".join(answer.out.split())


def test_inputs_of_a_function(command, onnx_file, tmp_path):
    (tmp_path / "mine.py").write_text(
        "import numpy as np\n\ndef inputs():\n    return {'x': np.ones((5, 4), np.float32)}\n"
        "\ndef wrong():\n    return [1]\n"
        "\ndef numbered():\n    return {1: np.ones(4)}\n"
        "\ndef leaves():\n    raise SystemExit(0)\n"
    )
    path = onnx_file(MODEL)
    given = command("verify", path, "--runtime", "ort-cpu", "--load-inputs", f"{tmp_path}/mine.py:inputs")
    assert given.code == 0
    refused = command("verify", path, "--load-inputs", f"{tmp_path}/mine.py:wrong")
    assert (refused.code, "return a dictionary of arrays" in refused.err) == (2, True)
    numbered = command("verify", path, "--load-inputs", f"{tmp_path}/mine.py:numbered")
    assert (numbered.code, "return a dictionary of arrays by input name" in numbered.err) == (2, True)
    leaves = command("verify", path, "--load-inputs", f"{tmp_path}/mine.py:leaves")
    assert (leaves.code, "SystemExit: 0" in leaves.err) == (2, True)
    missing = command("verify", path, "--load-inputs", f"{tmp_path}/mine.py:other")
    assert (missing.code, "AttributeError" in missing.err) == (2, True)


def test_thorough_cross_checks_the_deviations(command, onnx_file):
    answer = command("verify", onnx_file(MODEL), "--runtime", "ort-cpu", "--thorough", "--json")
    assert '"OA315"' in answer.out
    assert "spreads" in answer.out


def test_the_plain_runtime_has_no_options():
    assert OrtRuntime("ort-cpu").session_options == {}


def test_an_original_of_another_form_fails_and_is_no_traceback(command, onnx_file):
    """The relations between elements ask nothing of outputs whose shape is wrong already."""
    original = onnx_file("g (float[n, 4] x) => (float[n, 4] y) { y = Relu (x) }", "original.onnx")
    file = onnx_file("g (float[n, 4] x) => (float[4, n] y) { a = Relu (x)  y = Transpose (a) }", "file.onnx")
    answer = command("verify", file, "--runtime", "ort-cpu", "--against", str(original))
    assert answer.code == 1
    assert "it should be (1, 4)" in answer.out


def deep(tmp_path, name, dtype, factor=1.0):
    """Forty layers of tanh(x w): the bound end to end is larger than what it bounds."""
    rng = np.random.default_rng(0)
    layers = range(40)
    kind = {"float32": "float", "float16": "float16"}[dtype]
    nodes = "".join(f"m{i} = MatMul (a{i}, w{i})  a{i + 1} = Tanh (m{i})  " for i in layers)
    graph = onnx.parser.parse_model(f"""<ir_version: 10, opset_import: ["": 18]>
        g ({kind}[n, 16] a0) => ({kind}[n, 16] y) {{ {nodes} y = Identity (a40) }}""")
    weights = {f"w{i}": rng.standard_normal((16, 16)) / 4 for i in layers}
    weights["w20"][3, 5] *= factor
    graph.graph.initializer.extend(
        onnx.numpy_helper.from_array(w.astype(dtype), n) for n, w in weights.items()
    )
    onnx.save(graph, tmp_path / name)
    return tmp_path / name


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_bound_that_says_nothing_passes_nothing(tmp_path, dtype):
    """Without nodes to look at, the noise tells at every size; and whether the file differs, or what runs it."""
    original, changed = (deep(tmp_path, f"{factor}.onnx", dtype, factor) for factor in (1.0, -3.0))
    assert verify(original, runtimes=["ort-cpu"], against=original).verdict == "passed"
    report = verify(changed, runtimes=["ort-cpu"], against=original)
    assert {cell.verdict for cell in report.cells} == {"failed"}
    assert "OA117" in {item.code for item in report.findings}


def test_where_nothing_tells_nothing_is_proven(tmp_path):
    """Declared to sum in half precision, each runtime in its own way: there is no noise to compare with."""
    report = verify(
        deep(tmp_path, "deep.onnx", "float16"), runtimes=["ort-cpu"], plan=Plan(arithmetic="fp16-acc")
    )
    assert report.verdict == "inconclusive"
    assert "the bound is as large as the outputs themselves" in report.run.reason


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("g (float[n, 4] x) => (double[n, 4] y) { a = Relu (x)  y = Cast <to = 11> (a) }", "y is float64, in the original float32"),
        ("g (float[3, 4] x) => (float[3, 4] y) { y = Relu (x) }", "axis 0 of x is 3, in the original any size"),
    ],
    ids=["another dtype", "an axis fixed"],
)  # fmt: skip
def test_a_file_of_another_signature_than_its_original_fails(command, onnx_file, text, said):
    original = onnx_file("g (float[n, 4] x) => (float[n, 4] y) { y = Relu (x) }", "original.onnx")
    answer = command(
        "verify", onnx_file(text, "file.onnx"), "--runtime", "ort-cpu", "--against", str(original)
    )
    assert answer.code == 1
    assert said in answer.out


@pytest.mark.parametrize(("declared", "found"), [("[n, 9]", True), ("[n, 8]", False), ("[n, m]", False)])
def test_an_output_that_is_not_as_declared_is_said(onnx_file, declared, found):
    file = onnx_file(f"g (float[n, 8] x) => (float{declared} y) {{ y = Relu (x) }}")
    report = verify(file, runtimes=["ort-cpu-noopt"])
    assert ("OA119" in {item.code for item in report.findings}) == found


def test_partial_sums_that_overflow_in_some_order_are_no_fault_of_a_kernel(tmp_path, onnx_file):
    """Terms of 3e38 that cancel: whether a sum overflows on the way is a matter of its order."""
    file = onnx_file("g (float[2, 6] x, float[6, 3] w) => (float[2, 3] y) { y = MatMul (x, w) }")
    x = np.tile(np.array([3e38, -3e38, 1, 3e38, -3e38, 1], np.float32), (2, 1))
    report = verify(
        file, runtimes=["ort-cpu", "onnx-reference"], inputs={"x": x, "w": np.ones((6, 3), np.float32)}
    )
    assert "failed" not in {cell.verdict for cell in report.cells}
