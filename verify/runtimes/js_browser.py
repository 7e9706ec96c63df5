"""A page in a headless Chromium: ChromeDriver steers it, and a server of this process gives it files and frames.

Numbers do not pass through ChromeDriver, which speaks JSON: the page fetches a request, and posts its answer. The
server answers on the loopback device only, below a path that cannot be guessed.
"""

from __future__ import annotations

import http.client
import json
import re
import secrets
import subprocess
import tempfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from onnx_attest.verify.runtimes.js_hosts import HostError, descendants_die_with_us

_FLAGS = (
    "--headless",
    "--no-sandbox",  # Chromium has none for root, which containers run as; it loads nothing but our page
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-breakpad",
    "--disable-dev-shm-usage",
    "--no-first-run",
)
_KINDS = {".html": "text/html", ".mjs": "text/javascript", ".wasm": "application/wasm"}
_START_S = 60
_STARTED = re.compile(r"started successfully on port (\d+)")
_SERVE = "const done = arguments[arguments.length - 1]; serve().then(() => done(''), (e) => done(String(e)));"
_READY = "return typeof serve === 'function'"
_GRACE_S = 5


class BrowserHost:
    """Chromium with one page that answers frames."""

    def __init__(self, chromium: str, chromedriver: str, scripts: Path, dist: Path, threads: int) -> None:
        """Start the browser and load the page.

        Raises:
            HostError: the driver, the browser or the page does not start; their own words.
        """
        self._profile = tempfile.TemporaryDirectory(
            prefix="onnx-attest-chromium-", ignore_cleanup_errors=True
        )
        self._server = _Server(scripts, dist)
        self._limit_s = 0.0
        self._process = subprocess.Popen(  # noqa: S603 - the driver that the user has
            descendants_die_with_us([chromedriver, "--port=0"]),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            self._port = self._driver_port()
            self._session = self._begin(chromium)
            self._load(f"{self._server.address}/page.html?threads={threads}")
        except (OSError, http.client.HTTPException, ValueError) as error:
            self.close()
            raise HostError(f"ChromeDriver does not answer: {error}") from error
        except HostError:
            self.close()
            raise

    def ask(self, frame: bytes, time_limit_s: float) -> bytes:
        """Return the page's answer to a frame.

        Raises:
            HostError: the page crashed, or did not answer in time; the browser is gone then.
        """
        self._server.request, self._server.answer = frame, None
        try:
            if time_limit_s != self._limit_s:
                milliseconds = {"script": int(time_limit_s * 1000)}
                self._call("POST", "/timeouts", milliseconds, time_limit_s=_START_S)
                self._limit_s = time_limit_s
            said = self._call("POST", "/execute/async", {"script": _SERVE, "args": []}, time_limit_s=time_limit_s + _GRACE_S)  # fmt: skip
        except (OSError, http.client.HTTPException, ValueError) as error:
            self.close()
            raise HostError(f"no answer within {time_limit_s:g} s: {error}") from error
        except HostError:
            self.close()
            raise
        answer, self._server.request = self._server.answer, b""
        if answer is None:
            self.close()
            raise HostError(f"the page did not answer: {said or 'no reason given'}")
        return answer

    def close(self) -> None:
        """End the browser and its driver: the whole process group that was started for them, and nothing else."""
        assert self._process.stdin is not None  # both are pipes
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(_GRACE_S)
        self._process.stdout.close()
        self._server.stop()
        self._profile.cleanup()

    def _driver_port(self) -> int:
        """Return the port that ChromeDriver says it listens on."""
        assert self._process.stdout is not None  # it is a pipe
        lines = []
        timer = threading.Timer(_START_S, self._process.kill)
        timer.start()
        try:
            for raw in self._process.stdout:
                lines.append(raw.decode(errors="replace").strip())
                if found := _STARTED.search(lines[-1]):
                    # Nobody reads on: what ChromeDriver says later must not fill the pipe and stop it.
                    threading.Thread(target=_drain, args=(self._process.stdout,), daemon=True).start()
                    return int(found[1])
        finally:
            timer.cancel()
        raise HostError(f"ChromeDriver does not start: {' '.join(lines[-1:]) or 'it says nothing'}")

    def _begin(self, chromium: str) -> str:
        options = {"binary": chromium, "args": [*_FLAGS, f"--user-data-dir={self._profile.name}"]}
        wanted = {"capabilities": {"alwaysMatch": {"goog:chromeOptions": options}}}
        self._session = ""
        return str(self._call("POST", "", wanted, time_limit_s=_START_S)["sessionId"])

    def _load(self, address: str) -> None:
        self._call("POST", "/url", {"url": address}, time_limit_s=_START_S)
        # A module that fails to load leaves a page without `serve`, and the reason in the browser's log.
        if not self._call("POST", "/execute/sync", {"script": _READY, "args": []}, time_limit_s=_START_S):
            raise HostError("the page does not load onnxruntime-web")

    def _call(self, method: str, path: str, body: dict[str, Any], *, time_limit_s: float) -> Any:
        """Return the value of a WebDriver command.

        Raises:
            HostError: ChromeDriver refuses it; its own words.
        """
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=time_limit_s)
        try:
            where = f"/session/{self._session}" if self._session else "/session"
            connection.request(method, where + path, json.dumps(body))
            value = json.loads(connection.getresponse().read())["value"]
        finally:
            connection.close()
        if isinstance(value, dict) and "error" in value:
            raise HostError(f"{value['error']}: {str(value.get('message', '')).splitlines()[0]}")
        return value


def _drain(pipe: Any) -> None:
    try:
        while pipe.read(65536):
            pass
    except (OSError, ValueError):  # it was closed
        return


class _Server:
    """The files of the page, the request that waits for it, and the answer it gave.

    Pages are isolated (COOP and COEP), so that WebAssembly may have threads and clocks are fine.
    """

    def __init__(self, scripts: Path, dist: Path) -> None:
        self.request = b""
        self.answer: bytes | None = None
        token = secrets.token_urlsafe(24)
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self, token, scripts, dist))
        self.address = f"http://127.0.0.1:{self._http.server_port}/{token}"
        threading.Thread(target=self._http.serve_forever, daemon=True).start()

    def stop(self) -> None:
        """Close the port."""
        self._http.shutdown()
        self._http.server_close()


def _handler(server: _Server, token: str, scripts: Path, dist: Path) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = self.path.partition("?")[0].removeprefix(f"/{token}/")
            if path == "request":
                self._send(server.request, "application/octet-stream")
                return
            folder, name = (dist, path[5:]) if path.startswith("dist/") else (scripts, path)
            file = folder / name
            if "/" in name or not file.is_file():
                self.send_error(404)
                return
            self._send(file.read_bytes(), _KINDS.get(file.suffix, "application/octet-stream"))

        def do_POST(self) -> None:
            if self.path != f"/{token}/answer":
                self.send_error(404)
                return
            server.answer = self.rfile.read(int(self.headers["Content-Length"]))
            self._send(b"", "text/plain")

        def _send(self, body: bytes, kind: str) -> None:
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Cross-Origin-Opener-Policy", "same-origin")
            self.send_header("Cross-Origin-Embedder-Policy", "require-corp")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Say nothing: stderr is the command's."""

    return Handler
