"""ONNX Runtime in JavaScript: what arrives is bit for bit what was sent, and a process that dies or hangs is said to."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from onnx_attest.errors import UsageError
from onnx_attest.export.artifact import read_artifact
from onnx_attest.verify.runtimes import javascript, web_packages
from onnx_attest.verify.runtimes.base import Clocked, UnavailableError
from onnx_attest.verify.runtimes.chromium import Chromium
from onnx_attest.verify.runtimes.javascript import JavaScriptError, JavaScriptRuntime
from onnx_attest.verify.runtimes.js_browser import BrowserHost
from onnx_attest.verify.runtimes.js_frames import LENGTHS, pack, read_outputs, unpack, write_inputs
from onnx_attest.verify.runtimes.js_hosts import HostError, NodeHost
from onnx_attest.verify.runtimes.registry import select

RUNTIMES = select(("ort-node", "ort-web-node", "ort-web"))
NODE = shutil.which("node")
SUM = "g (float[n, 4] x) => (float[n, 4] y) { y = Add (x, x) }"
X = np.arange(8, dtype=np.float32).reshape(2, 4)


@pytest.fixture(params=RUNTIMES, ids=lambda runtime: runtime.name)
def runtime(request: pytest.FixtureRequest) -> JavaScriptRuntime:
    """Each JavaScript runtime that works here."""
    found = request.param.availability()
    if not found.usable:
        pytest.skip(f"{request.param.name} needs more: {found.remark}")
    return request.param


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("float", np.float32),
        ("float16", np.float16),
        ("double", np.float64),
        ("int64", np.int64),
        ("int32", np.int32),
        ("uint8", np.uint8),
        ("bool", np.bool_),
    ],
)
def test_every_type_keeps_its_bits(runtime, onnx_file, name, dtype):
    """A move computes nothing; NaN, infinities, zeros with a sign and integers beyond 2^53 arrive as they are."""
    special = {"f": [np.nan, np.inf, -np.inf, -0.0, 1, 2, 3, 4], "b": [True, False] * 4}
    numbers = special.get(np.dtype(dtype).kind, [np.iinfo(dtype).max, np.iinfo(dtype).min, 0, 1, 2, 3, 4, 5] if np.dtype(dtype).kind in "iu" else [])  # fmt: skip
    x = np.array(numbers, dtype).reshape(2, 4)
    file = onnx_file(f"g ({name}[n, 4] x) => ({name}[4, n] y) {{ y = Transpose (x) }}")
    y = runtime.open(read_artifact(file)).run({"x": x})["y"]
    assert y.dtype == x.dtype
    np.testing.assert_array_equal(y, x.T)
    assert np.signbit(y[3, 0]) == np.signbit(x[0, 3]) if x.dtype.kind == "f" else True


@pytest.mark.parametrize("rows", [0, 1, 300])
def test_runs_by_name_at_every_size(runtime, onnx_file, rows):
    x = np.resize(X, (rows, 4))
    session = runtime.open(read_artifact(onnx_file(SUM)))
    np.testing.assert_array_equal(session.run({"x": x})["y"], x + x)


def test_scalar_output_keeps_its_rank(runtime, onnx_file):
    file = onnx_file("g (float[n, 4] x) => (float[] y) { y = ReduceSum <keepdims = 0> (x) }")
    y = runtime.open(read_artifact(file)).run({"x": X})["y"]
    assert (y.shape, float(y)) == ((), 28.0)


def test_session_says_what_it_runs_on(runtime, onnx_file):
    placement = runtime.open(read_artifact(onnx_file(SUM))).placement
    assert placement.used == placement.requested == (runtime.backend,)
    assert placement.details["onnxruntime"] == runtime.availability().version
    assert placement.details["host"].startswith("Chromium " if runtime.browser else "Node ")
    if runtime.backend == "wasm":
        assert placement.details["threads"] == "1"


def test_time_of_a_call_is_javascripts_own(runtime, onnx_file):
    session = runtime.open(read_artifact(onnx_file(SUM)))
    assert isinstance(session, Clocked)
    start = time.perf_counter()
    taken = session.calls_s({"x": X}, 3)
    assert len(taken) == 3
    assert 0 <= sum(taken) < time.perf_counter() - start


def test_file_that_onnxruntime_refuses_is_an_error_in_its_words(runtime, onnx_file):
    path = onnx_file("g (float[n, 4] x) => (float[n, 4] y) { y = Concat <axis = 5> (x, x) }")
    with pytest.raises(JavaScriptError, match="axis"):
        runtime.open(read_artifact(path))


def test_error_of_a_run_leaves_the_process_at_work(runtime, onnx_file):
    session = runtime.open(read_artifact(onnx_file(SUM)))
    with pytest.raises(JavaScriptError):
        session.run({"x": X.astype(np.int64)})
    np.testing.assert_array_equal(session.run({"x": X})["y"], X + X)


def test_sessions_of_one_runtime_share_a_process_and_are_kept_apart(runtime, onnx_file):
    double = runtime.open(read_artifact(onnx_file(SUM, "sum.onnx")))
    negative = runtime.open(
        read_artifact(onnx_file("g (float[n, 4] x) => (float[n, 4] y) { y = Neg (x) }", "neg.onnx"))
    )
    assert double._pool is negative._pool
    np.testing.assert_array_equal(double.run({"x": X})["y"], X + X)
    np.testing.assert_array_equal(negative.run({"x": X})["y"], -X)


def test_session_that_nobody_holds_is_released(runtime, onnx_file):
    artifact = read_artifact(onnx_file(SUM))
    session = runtime.open(artifact)
    number, pool = session._number, session._pool
    del session
    assert number in pool.forgotten
    runtime.open(artifact)
    assert number not in pool.forgotten
    with pytest.raises(JavaScriptError):
        pool.ask(write_inputs({"op": "run", "id": number}, {"x": X}), 60)


def test_copy_with_tensors_beside_the_file_runs(runtime, tmp_path):
    import onnx

    text = '<ir_version: 10, opset_import: ["": 18]> g (float[n, 4] x) => (float[n, 4] y) <float[4] w = {1, 2, 3, 4}> { y = Mul (x, w) }'
    path = tmp_path / "model.onnx"
    onnx.save(
        onnx.parser.parse_model(text), path, save_as_external_data=True, location="w.bin", size_threshold=0
    )
    wanted = X * np.float32([1, 2, 3, 4])
    copy = onnx.load(path, load_external_data=False).SerializeToString()
    np.testing.assert_array_equal(runtime.open(read_artifact(path)).run({"x": X})["y"], wanted)
    np.testing.assert_array_equal(runtime.open(read_artifact(path), model=copy).run({"x": X})["y"], wanted)


def test_process_that_died_is_said_to_and_begun_anew(runtime, onnx_file):
    artifact = read_artifact(onnx_file(SUM))
    session = runtime.open(artifact)
    _kill(session._pool.host)
    with pytest.raises(HostError):
        session.run({"x": X})
    with pytest.raises(HostError, match="the process of this session has ended"):
        session.run({"x": X})
    np.testing.assert_array_equal(runtime.open(artifact).run({"x": X})["y"], X + X)


def test_hang_ends_at_the_time_limit(runtime, onnx_file):
    """Ten million sines of a few numbers, one after another, take longer than they are given."""
    text = """g (float[n, 4] x) => (float[n, 4] y) {
        t = Constant <value_int = 10000000> () c = Constant <value_int = 1> () k = Cast <to = 9> (c)
        y = Loop (t, k, x) <body = b (int64 i, bool k0, float[n, 4] v) => (bool k1, float[n, 4] w) { k1 = Identity (k0) w = Sin (v) }>
    }"""
    session = runtime.open(read_artifact(onnx_file(text)))
    session._time_limit_s = 0.05
    with pytest.raises(HostError):
        session.run({"x": X})


def _kill(host: NodeHost | BrowserHost) -> None:
    process = host.browser._process if isinstance(host, BrowserHost) else host._process
    if isinstance(host, BrowserHost):
        os.killpg(process.pid, signal.SIGKILL)
    else:
        process.kill()
    process.wait()


def test_browser_ends_when_the_process_that_started_it_is_killed(onnx_file):
    (web,) = select(("ort-web",))
    if not web.availability().usable:
        pytest.skip(f"ort-web needs more: {web.availability().remark}")
    code = (
        "import sys, os, signal; from pathlib import Path\n"
        "from onnx_attest.export.artifact import read_artifact\n"
        "from onnx_attest.verify.runtimes.registry import select\n"
        "session = select(('ort-web',))[0].open(read_artifact(Path(sys.argv[1])))\n"
        "print(session._pool.host.browser._process.pid, flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    )
    found = subprocess.run([sys.executable, "-c", code, str(onnx_file(SUM))], text=True, capture_output=True, check=False)  # fmt: skip
    group = int(found.stdout)
    deadline = time.monotonic() + 20
    while _alive(group) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not _alive(group)


def _alive(group: int) -> bool:
    """Whether a process group has members other than such that only wait to be reaped."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, of = stat.read_text().rpartition(")")[2].split()[:3]
        except OSError:
            continue
        if int(of) == group and state != "Z":
            return True
    return False


# --- what can be told without any of it -------------------------------------------------------------------------


def test_type_without_a_tensor_in_javascript_is_refused(onnx_file, monkeypatch):
    monkeypatch.setattr(JavaScriptRuntime, "availability", lambda self: javascript.Availability(True))
    file = onnx_file("g (bfloat16[n, 4] x) => (bfloat16[n, 4] y) { y = Identity (x) }")
    with pytest.raises(UnavailableError, match="has no tensor of bfloat16, which x is"):
        RUNTIMES[0].open(read_artifact(file))


def test_frames_hold_headers_and_arrays():
    arrays = {"a": np.arange(3, dtype=np.int64), "b": np.zeros((0, 2), np.float16), "c": np.array([[True]])}
    header, body = unpack(write_inputs({"op": "run"}, arrays))
    assert [one["bytes"] for one in header["inputs"]] == [24, 0, 1]
    back = read_outputs({"outputs": header["inputs"]}, body)
    for name, array in arrays.items():
        assert back[name].dtype == array.dtype
        np.testing.assert_array_equal(back[name], array)


def test_frame_begins_with_the_lengths_of_its_parts():
    assert LENGTHS.unpack_from(pack({"op": "é"}, b"12", b"3")) == (len('{"op": "\\u00e9"}'), 3)


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    """An empty cache of packages."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv(web_packages.FOLDER, raising=False)
    return tmp_path / "onnx-attest" / "web"


def put(folder: Path, package: str, version: str) -> None:
    (folder / "node_modules" / package).mkdir(parents=True)
    (folder / "node_modules" / package / "package.json").write_text(json.dumps({"version": version}))


@pytest.mark.skipif(NODE is None, reason="needs node")
def test_missing_package_is_named_with_the_command_that_installs_it(cache):
    found = RUNTIMES[0].availability()
    assert found.reason == "the npm package onnxruntime-node is not installed"
    assert found.install == "onnx-attest doctor --install web"


@pytest.mark.skipif(NODE is None, reason="needs node")
def test_package_in_another_version_than_pinned_is_named(cache):
    put(cache, "onnxruntime-node", "1.0.0")
    assert RUNTIMES[0].availability().reason.startswith("onnxruntime-node 1.0.0 is installed, and ")


@pytest.mark.skipif(NODE is None, reason="needs node")
def test_own_folder_is_taken_in_its_own_version(tmp_path, monkeypatch):
    put(tmp_path, "onnxruntime-node", "1.0.0")
    monkeypatch.setenv(web_packages.FOLDER, str(tmp_path))
    found = RUNTIMES[0].availability()
    assert (found.usable, found.version) == (True, "1.0.0")


@pytest.mark.parametrize(("name", "missing"), [("ort-node", "node"), ("ort-web", "chromium")])
def test_missing_program_is_named(name, missing, monkeypatch):
    monkeypatch.setenv("PATH", "")
    (runtime,) = select((name,))
    assert runtime.availability().reason == f"there is no {missing}"


def test_install_without_npm_says_what_to_do(cache, monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(UsageError, match=r"there is no npm: install Node\.js"):
        web_packages.install()


def test_install_that_fails_gives_npms_words(cache, tmp_path, monkeypatch):
    npm = tmp_path / "bin" / "npm"
    npm.parent.mkdir()
    npm.write_text("#!/bin/sh\necho 'npm error code E404' >&2\nexit 1\n")
    npm.chmod(0o755)
    monkeypatch.setenv("PATH", f"{npm.parent}{os.pathsep}{os.environ['PATH']}")
    with pytest.raises(UsageError, match="npm error code E404"):
        web_packages.install()


def test_unknown_group_is_refused(command):
    command("doctor", "--install", "weeb").assert_refused("weeb", "web")


@pytest.mark.skipif(NODE is None, reason="needs node")
def test_node_that_ends_gives_its_words(tmp_path):
    script = tmp_path / "dies.mjs"
    script.write_text("throw new TypeError('no such thing')")
    host = NodeHost(NODE, script)
    with pytest.raises(HostError, match=r"Node ended with return code 1: .*no such thing"):
        host.ask(pack({"op": "none"}), 60)


@pytest.mark.skipif(NODE is None, reason="needs node")
def test_node_that_hangs_is_killed_at_the_time_limit(tmp_path):
    script = tmp_path / "hangs.mjs"
    script.write_text("setInterval(() => {}, 1000)")
    host = NodeHost(NODE, script)
    with pytest.raises(HostError, match=r"no answer within 0\.2 s, so its process was killed"):
        host.ask(pack({"op": "none"}), 0.2)
    assert host._process.returncode is not None


def _driver(folder: Path, *, failures: int) -> str:
    """Return a driver whose first starts fail, as they do on a busy machine; the real one is behind it."""
    driver = folder / "driver"
    driver.write_text(
        f'#!/bin/sh\n[ "$(cat {folder}/starts | wc -c)" -ge {failures} ] && exec chromedriver "$@"\n'
        f"printf x >> {folder}/starts\necho no room, start $(cat {folder}/starts | wc -c)\nexit 1\n"
    )
    (folder / "starts").touch()
    driver.chmod(0o755)
    return str(driver)


@pytest.fixture
def browser_program() -> str:
    """The browser, where it and its driver are there."""
    found = shutil.which("chromium")
    if found is None or shutil.which("chromedriver") is None:
        pytest.skip("chromium and chromedriver are not both here")
    return found


def test_browser_that_fails_to_start_once_is_started_again(browser_program, tmp_path):
    browser = Chromium(browser_program, _driver(tmp_path, failures=1))
    assert browser.script("return 6 * 7") == 42
    browser.close()


def test_browser_that_fails_to_start_twice_is_an_error_with_both_reasons(browser_program, tmp_path):
    with pytest.raises(HostError, match=r"no room, start 2; and before that: .*no room, start 1"):
        Chromium(browser_program, _driver(tmp_path, failures=2))
