"""Moves folders away at once, and removes them with their contents in the background."""

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

_WAIT_S = 20.0
"""How long to wait for the removing process if too many folders are left."""
_CLOSE_S = 5.0
"""How long `Removal.close` waits for the removing process."""
_MAX_WAITING = 8
"""Number of folders that may wait to be removed."""


class Removal:
    """Removes folders of one sandbox with one separate process, which continues if the worker dies.

    If the separate process dies, too, the next such process removes the remaining folders. Any thread may use this
    object.

    Args:
        root: an existing folder that only this sandbox uses, on the file system of the folders to remove.
    """

    def __init__(self, root: Path) -> None:
        self._folder = root / "removed"
        self._process: subprocess.Popen[bytes] | None = None
        self._starting = threading.Lock()
        """Locked while `_process` is replaced, but never during a wait."""

    def take(self, path: Path, *, wait: bool = True) -> None:
        """Move a folder away, if it exists, and remove it in the background. Raises OSError if the move fails.

        Args:
            path: the folder.
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
        """Start to remove all folders that were moved away, including those of an earlier worker.

        Args:
            wait: whether to wait a while if too many folders are left. Use False to move many folders in turn.
        """
        waiting = len(os.listdir(self._folder)) if self._folder.exists() else 0
        if wait and waiting > _MAX_WAITING:
            # Programs that fill folders faster than these can be removed have to wait.
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
        """Wait a moment for the removing process. If the process needs longer, it continues alone."""
        self.sweep(wait=False)
        self._wait(_CLOSE_S)

    def _wait(self, seconds: float) -> None:
        """Wait for the removing process to end, for at most this many seconds."""
        process = self._process
        if process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(seconds)
