"""A headless Chromium, driven over the WebDriver protocol by chromedriver. No package is needed for it."""

from __future__ import annotations

import base64
import contextlib
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest


class Browser:
    """One page in one window."""

    def __init__(self, driver: httpx.Client, session: str) -> None:
        self._driver = driver
        self._session = session

    def open(self, url: str) -> None:
        self._ask("POST", "/url", {"url": "about:blank"})
        self._ask("POST", "/url", {"url": url})

    def run(self, script: str, *arguments: object) -> Any:
        """What a function body returns in the page."""
        return self._ask("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def wait(self, condition: str, timeout_s: float = 20.0) -> Any:
        """Wait until a JavaScript expression is true; gives its value."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            value = self.run(f"return {condition}")
            if value:
                return value
            time.sleep(0.05)
        raise AssertionError(f"never true within {timeout_s:g} s: {condition}")

    def devtools(self, command: str, **parameters: Any) -> Any:
        return self._ask("POST", "/goog/cdp/execute", {"cmd": command, "params": parameters})

    def complaints(self) -> list[str]:
        """What the page has written to the console as errors since the last look."""
        entries = self._ask("POST", "/se/log", {"type": "browser"})
        return [entry["message"] for entry in entries if entry["level"] == "SEVERE"]

    def screenshot(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self._ask("GET", "/screenshot")))

    def _ask(self, method: str, path: str, body: object | None = None) -> Any:
        answer = self._driver.request(method, f"/session/{self._session}{path}", json=body)
        value = answer.json()["value"]
        if answer.is_error:
            raise AssertionError(f"{path}: {value['message']}")
        return value


@contextlib.contextmanager
def open_browser(width: int = 1500, height: int = 1000) -> Iterator[Browser]:
    """A browser without a network of its own; the test is skipped where there is no Chromium."""
    binary = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    chromedriver = shutil.which("chromedriver")
    if binary is None or chromedriver is None:
        pytest.skip("no chromium with chromedriver here (Debian: apt install chromium chromium-driver)")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with tempfile.TemporaryDirectory() as profile:
        process = subprocess.Popen(
            [chromedriver, f"--port={port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60, trust_env=False) as driver:
                session = _session(driver, binary, profile, (width, height))
                try:
                    yield Browser(driver, session)
                finally:
                    driver.delete(f"/session/{session}")
        finally:
            process.terminate()
            process.wait(10)


def _session(driver: httpx.Client, binary: str, profile: str, size: tuple[int, int]) -> str:
    arguments = [
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--hide-scrollbars",
        f"--window-size={size[0]},{size[1]}",
        f"--user-data-dir={profile}",
        # Whatever the page asks of the network fails, and is then found among the complaints.
        "--host-resolver-rules=MAP * ~NOTFOUND",
    ]
    wanted = {
        "browserName": "chrome",
        "goog:chromeOptions": {"binary": binary, "args": arguments},
        "goog:loggingPrefs": {"browser": "ALL"},
    }
    deadline = time.monotonic() + 20
    while True:
        try:
            answer = driver.post("/session", json={"capabilities": {"alwaysMatch": wanted}})
            break
        except httpx.ConnectError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
    value = answer.json()["value"]
    if answer.is_error:
        pytest.skip(f"chromium does not start here: {value['message'][:300]}")
    return str(value["sessionId"])
