"""Takes folders out of the way at once, and removes them in the background, however much is in them."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
import sys
import threading
import uuid
from pathlib import Path

from rstar2.judge.sandbox import rootfs

_WAIT_S, _CLOSE_S = 20.0, 5.0
"""How long to wait for the process, if too much is left to remove, and at the end."""
_MOST_WAITING = 8
"""Folders that may wait to be removed."""


class Removal:
    """Removes folders of one sandbox by one process at a time, which continues when the worker dies.

    If that process dies too, the next one removes what is left. Any thread may use it.

    Args:
        root: an existing folder for this sandbox alone, on the file system of the folders to remove.
    """

    def __init__(self, root: Path) -> None:
        self._folder = root / "removed"
        self._process: subprocess.Popen[bytes] | None = None
        self._starting = threading.Lock()
        """Held while `_process` is replaced, and never while anything is waited for."""

    def take(self, path: Path, *, wait: bool = True) -> None:
        """Rename a folder, if it exists, and remove it. OSError if it cannot be renamed.

        Args:
            wait: as for `sweep`.
        """
        with contextlib.suppress(FileNotFoundError):
            try:
                path.rmdir()
            except OSError as error:
                if error.errno != errno.ENOTEMPTY:
                    raise
                self._folder.mkdir(exist_ok=True)
                path.rename(self._folder / uuid.uuid4().hex)
                self.sweep(wait=wait)

    def sweep(self, *, wait: bool = True) -> None:
        """Remove what was taken away so far, also by an earlier worker in the same folder.

        Args:
            wait: if too much is left, wait a while for less of it; not for those who take many folders in turn.
        """
        waiting = len(os.listdir(self._folder)) if self._folder.exists() else 0
        if wait and waiting > _MOST_WAITING:
            # Whoever leaves folders faster than they can be removed has to wait.
            self._wait(_WAIT_S)
        with self._starting:
            if self._process is not None and self._process.poll() is not None:
                self._process = None
            if waiting and self._process is None:
                self._process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        start = (
            f"import sys; sys.path.insert(0, {str(Path(__file__).resolve().parents[4])!r}); "
            "from rstar2.judge.sandbox.inside.scratch import remove_in_background as remove; "
            "remove(sys.argv[1])"
        )
        command = [sys.executable, "-I", "-S", "-c", start, str(self._folder)]
        return subprocess.Popen(command, env=rootfs.ENVIRONMENT, cwd="/")

    def close(self) -> None:
        """Wait a moment for the process, which otherwise continues alone."""
        self.sweep(wait=False)
        self._wait(_CLOSE_S)

    def _wait(self, seconds: float) -> None:
        """Wait for the process to end, but no longer than this."""
        process = self._process
        if process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(seconds)
