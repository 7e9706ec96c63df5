"""A page in a headless Chromium, and a server of this process that gives it files and frames.

Numbers do not pass through ChromeDriver, which speaks JSON: the page fetches a request, and posts its answer. The
server answers on the loopback device only, below a path that cannot be guessed.
"""

from __future__ import annotations

import secrets
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from onnx_attest.verify.runtimes.chromium import START_S, Chromium, NoAnswerError
from onnx_attest.verify.runtimes.js_hosts import HostError

_KINDS = {".html": "text/html", ".mjs": "text/javascript", ".wasm": "application/wasm"}
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
        self.browser = Chromium(chromium, chromedriver)
        self._server = _Server(scripts, dist)
        self._limit_s = 0.0
        try:
            self.browser.load(f"{self._server.address}/page.html?threads={threads}")
            # A module that fails to load leaves a page without `serve`, and the reason in the browser's log.
            if not self.browser.script(_READY):
                raise HostError("the page does not load onnxruntime-web")
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
                self.browser.call("POST", "/timeouts", milliseconds, time_limit_s=START_S)
                self._limit_s = time_limit_s
            said = self.browser.call(
                "POST", "/execute/async", {"script": _SERVE, "args": []}, time_limit_s=time_limit_s + _GRACE_S
            )
        except NoAnswerError as error:
            self.close()
            raise HostError(f"no answer within {time_limit_s:g} s: {error.__cause__}") from error
        except HostError:
            self.close()
            raise
        answer, self._server.request = self._server.answer, b""
        if answer is None:
            self.close()
            raise HostError(f"the page did not answer: {said or 'no reason given'}")
        return answer

    def close(self) -> None:
        """End the browser and its driver, and close the port."""
        self.browser.close()
        self._server.stop()


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
