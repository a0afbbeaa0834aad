"""A headless Chromium for tests, driven over the Chrome DevTools Protocol on a pair of pipes.

No driver program and no package is needed, and Chromium ends by itself when its pipe is closed.
https://chromedevtools.github.io/devtools-protocol/
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.report.chromium import HINT, find_chromium
from support.waiting import wait_until

# A generous limit: on an idle machine each command takes well under a second.
_LIMIT_S = 600.0

_ARGUMENTS = (
    "--headless=new",
    "--no-sandbox",  # root may not use Chromium's own
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--hide-scrollbars",
    # A request for another host fails and is then among `Browser.errors()`.
    "--host-resolver-rules=MAP * ~NOTFOUND",
    "--remote-debugging-pipe",
)


class _Pipe:
    """A connection to Chromium: commands, replies and events are JSON texts that end with a NUL byte."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._to = process.stdin
        self._from = process.stdout.fileno()
        self._buffer = b""
        self._number = 0
        self.events: list[dict[str, Any]] = []

    def ask(self, method: str, parameters: dict[str, Any], session: str | None = None) -> dict[str, Any]:
        """Send a command and wait for its reply. Events that arrive meanwhile are stored.

        Raises:
            AssertionError: Chromium rejected the command, has ended or did not reply.
        """
        self._number += 1
        command = {"id": self._number, "method": method, "params": parameters}
        if session is not None:
            command["sessionId"] = session
        self._to.write(json.dumps(command).encode() + b"\0")
        self._to.flush()
        deadline = time.monotonic() + _LIMIT_S
        while (message := self._receive(deadline)).get("id") != self._number:
            self.events.append(message)
        if "error" in message:
            raise AssertionError(f"{method}: {message['error']['message']}")
        result: dict[str, Any] = message["result"]
        return result

    def wait_for(self, event: str, **parameters: str) -> None:
        """Wait for an event with these parameters. An event that came earlier counts too."""
        deadline = time.monotonic() + _LIMIT_S
        while not any(
            message["method"] == event and parameters.items() <= message["params"].items()
            for message in self.events
        ):
            self.events.append(self._receive(deadline))

    def _receive(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._from], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                raise AssertionError(f"Chromium did not reply within {_LIMIT_S:g} s")
            data = os.read(self._from, 1 << 20)
            if not data:
                raise AssertionError("Chromium has ended")
            self._buffer += data
        raw, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(raw)
        return message


class Browser:
    """One page in one window."""

    def __init__(self, pipe: _Pipe, session: str) -> None:
        self._pipe = pipe
        self._session = session

    def open(self, url: str) -> None:
        """Load a page. It is loaded again even if only the part after `#` differs from the current page."""
        self.devtools("Page.navigate", url="about:blank")
        self._pipe.events.clear()
        loader = self.devtools("Page.navigate", url=url)["loaderId"]
        self._pipe.wait_for("Page.lifecycleEvent", loaderId=loader, name="load")

    def run(self, script: str, *arguments: object) -> Any:
        """Run a function body in the page with these `arguments`. Returns its value; a `Promise` is awaited.

        Raises:
            AssertionError: The function threw an exception or did not return.
        """
        values = ", ".join(map(json.dumps, arguments))
        reply = self.devtools(
            "Runtime.evaluate",
            expression=f"(function () {{ {script} }})({values})",
            returnByValue=True,
            awaitPromise=True,
        )
        if "exceptionDetails" in reply:
            details = reply["exceptionDetails"]
            raise AssertionError(details.get("exception", {}).get("description", details["text"]))
        return reply["result"].get("value")

    def wait(self, condition: str) -> None:
        """Wait until a JavaScript expression is true. An expression that throws counts as false.

        Raises:
            AssertionError: The expression did not become true in time.
        """
        wrong = self.run(
            f"""return new Promise((resolve) => {{
              const end = performance.now() + {1000 * _LIMIT_S / 2};
              const look = () => {{
                let wrong = "never true";
                try {{
                  if ({condition}) return resolve(null);
                }} catch (error) {{
                  wrong = String(error);
                }}
                if (performance.now() > end) resolve(wrong);
                else setTimeout(look, 10);
              }};
              look();
            }})"""
        )
        assert wrong is None, f"{wrong} within {_LIMIT_S / 2:g} s: {condition}"

    def devtools(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command of the DevTools protocol to the page."""
        return self._pipe.ask(method, parameters, self._session)

    def errors(self) -> list[str]:
        """Return exceptions, console errors and failed requests since the page was opened."""
        self.run(
            "return new Promise((resolve) => setTimeout(resolve))"
        )  # the browser has sent all pending events
        messages = []
        for event in self._pipe.events:
            method, details = event["method"], event["params"]
            if method == "Runtime.exceptionThrown":
                exception = details["exceptionDetails"]
                messages.append(exception.get("exception", {}).get("description", exception["text"]))
            elif method == "Runtime.consoleAPICalled" and details["type"] == "error":
                messages.append(" ".join(str(value.get("value", "")) for value in details["args"]))
            elif method == "Log.entryAdded" and details["entry"]["level"] == "error":
                messages.append(details["entry"]["text"])
        return messages

    def resize(self, width: int, height: int) -> None:
        """Set the size of the page in CSS pixels."""
        self.devtools(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    def screenshot(self, path: Path, whole: bool = False) -> None:
        """Write a PNG of the visible part of the page, or of the whole page."""
        shot = self.devtools("Page.captureScreenshot", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(shot["data"]))


@contextlib.contextmanager
def open_browser(width: int = 1500, height: int = 1000) -> Iterator[Browser]:
    """Open a browser without a network. The test is skipped if there is no Chromium."""
    chromium = find_chromium()
    if chromium is None:
        pytest.skip(HINT)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        # --remote-debugging-pipe reads commands from descriptor 3 and writes to descriptor 4.
        process = subprocess.Popen(
            [
                *("sh", "-c", 'exec "$0" "$@" 3<&0 4>&1 </dev/null >/dev/null 2>&1', chromium),
                *(*_ARGUMENTS, f"--window-size={width},{height}", f"--user-data-dir={profile}"),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        try:
            yield _first_page(_Pipe(process))
        finally:
            try:
                process.communicate(timeout=_LIMIT_S)  # closes the pipe, at which Chromium ends
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _first_page(pipe: _Pipe) -> Browser:
    pages: list[str] = []

    def opened() -> list[str]:  # Chromium replies to commands before it has a window
        targets = pipe.ask("Target.getTargets", {})["targetInfos"]
        pages[:] = [target["targetId"] for target in targets if target["type"] == "page"]
        return pages

    wait_until(opened)
    attached = pipe.ask("Target.attachToTarget", {"targetId": pages[0], "flatten": True})
    browser = Browser(pipe, attached["sessionId"])
    for domain in ("Page", "Runtime", "Log"):
        browser.devtools(f"{domain}.enable")
    browser.devtools("Page.setLifecycleEventsEnabled", enabled=True)
    return browser
