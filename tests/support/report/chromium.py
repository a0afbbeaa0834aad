"""Finds the Chromium for the report's browser tests. Run as a script, it installs Debian's package if it can.

`make test` runs this script first. A Chromium that cannot be installed is no error: the tests are then skipped.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

VARIABLE = "RSTAR2_CHROMIUM"
"""The environment variable that names the browser."""

HINT = (
    f"the report's browser tests need Chromium: apt-get install chromium, or {VARIABLE}=/path/to/chrome "
    "(any Chromium or Chrome)"
)

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
_APT_OPTIONS = (
    "-q",
    "-o",
    "Acquire::Retries=1",
    "-o",
    "Acquire::http::Timeout=30",
    "-o",
    "DPkg::Lock::Timeout=60",
)
_UPDATE_S = 120
_DOWNLOAD_S = 300
_INSTALL_S = 300


def find_chromium() -> str | None:
    """Return the browser's path: that in RSTAR2_CHROMIUM, else the first one on PATH."""
    command = os.environ.get(VARIABLE)
    if command:
        return shutil.which(command)
    return next((path for path in map(shutil.which, _NAMES) if path), None)


def _install_with_apt() -> str | None:
    """Install Debian's package. Returns a description of the failure, or None after success."""
    install = ("install", "--yes", "--no-install-recommends", "chromium")
    # Downloading has a separate time limit, so that a slow network never interrupts dpkg.
    for arguments, limit_s in (
        (("update",), _UPDATE_S),
        ((*install, "--download-only"), _DOWNLOAD_S),
        (install, _INSTALL_S),
    ):
        command = f"apt-get {arguments[0]}"
        try:
            result = subprocess.run(
                ["apt-get", *_APT_OPTIONS, *arguments],
                env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=limit_s,
            )
        except subprocess.TimeoutExpired:
            return f"{command} took more than {limit_s} s"
        if result.returncode:
            last_line = (result.stdout.strip().splitlines() or [f"exit status {result.returncode}"])[-1]
            return f"{command} failed: {last_line}"
    return None


def main() -> None:
    if find_chromium():
        return
    if (
        VARIABLE in os.environ
        or os.geteuid() != 0
        or not Path("/etc/debian_version").exists()
        or not shutil.which("apt-get")
    ):
        print(f"skipping some tests: {HINT}", file=sys.stderr)
        return
    print("installing chromium for the report's browser tests (apt-get install chromium)", file=sys.stderr)
    failure = _install_with_apt()
    if failure or not find_chromium():
        print(f"skipping some tests: {HINT}; {failure or 'the package brought no browser'}", file=sys.stderr)


if __name__ == "__main__":
    main()
