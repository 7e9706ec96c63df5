"""A headless Chromium that ChromeDriver steers: started with an empty profile, and ended with all that it started."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import subprocess
import tempfile
import threading
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
START_S = 60
_STARTED = re.compile(r"started successfully on port (\d+)")
_GRACE_S = 5


class NoAnswerError(HostError):
    """The driver is gone, or took longer than it was given."""


class Chromium:
    """One session of one browser."""

    def __init__(self, chromium: str, chromedriver: str, flags: tuple[str, ...] = ()) -> None:
        """Start the driver and the browser, a second time if the first one fails.

        Raises:
            HostError: one of them does not start; their own words.
        """
        try:
            self._start(chromium, chromedriver, flags)
        except HostError as first:
            # A busy machine lets a browser's start fail now and then; nothing has been asked of it yet.
            try:
                self._start(chromium, chromedriver, flags)
            except HostError as second:
                raise HostError(f"{second}; and before that: {first}") from second

    def _start(self, chromium: str, chromedriver: str, flags: tuple[str, ...]) -> None:
        self._profile = tempfile.TemporaryDirectory(
            prefix="onnx-attest-chromium-", ignore_cleanup_errors=True
        )
        self._process = subprocess.Popen(  # noqa: S603 - the driver that the user has
            descendants_die_with_us([chromedriver, "--port=0"]),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self._session = ""
        try:
            self._port = self._driver_port()
            arguments = [*_FLAGS, *flags, f"--user-data-dir={self._profile.name}"]
            options = {"binary": chromium, "args": arguments}
            wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
            made = self.call("POST", "", {"capabilities": {"alwaysMatch": wanted}}, time_limit_s=START_S)
            self._session = str(made["sessionId"])
        except HostError:
            self.close()
            raise

    def load(self, address: str) -> None:
        """Open a page, and wait until it is loaded."""
        self.call("POST", "/url", {"url": address}, time_limit_s=START_S)

    def script(self, body: str, *arguments: Any) -> Any:
        """Return what the body of a function gives in the page."""
        return self.call(
            "POST", "/execute/sync", {"script": body, "args": list(arguments)}, time_limit_s=START_S
        )

    def command(self, name: str, **parameters: Any) -> Any:
        """Return the answer to a command of the DevTools protocol."""
        return self.call(
            "POST", "/goog/cdp/execute", {"cmd": name, "params": parameters}, time_limit_s=START_S
        )

    def close(self) -> None:
        """End the browser and its driver: the whole process group that was started for them, and nothing else."""
        assert self._process.stdin is not None  # both are pipes
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(_GRACE_S)
        except subprocess.TimeoutExpired:  # its shell has not come to it yet: the machine is busy
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._process.stdout.close()
        self._profile.cleanup()

    def _driver_port(self) -> int:
        """Return the port that ChromeDriver says it listens on."""
        assert self._process.stdout is not None  # it is a pipe
        lines = []
        timer = threading.Timer(START_S, self._process.kill)
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

    def call(self, method: str, path: str, body: dict[str, Any], *, time_limit_s: float) -> Any:
        """Return the value of a WebDriver command.

        Raises:
            NoAnswerError: ChromeDriver does not answer; the cause says why.
            HostError: it refuses the command; its own words.
        """
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=time_limit_s)
        try:
            where = f"/session/{self._session}" if self._session else "/session"
            connection.request(method, where + path, json.dumps(body))
            value = json.loads(connection.getresponse().read())["value"]
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise NoAnswerError(f"ChromeDriver does not answer: {error}") from error
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
