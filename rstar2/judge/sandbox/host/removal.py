"""Moves folders away at once, and removes the moved folders and their contents in the background."""

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
"""If too many folders wait to be removed, `Removal.sweep` waits at most this many seconds for the process that removes
them."""
_CLOSE_S = 5.0
"""Seconds for which `Removal.close` waits for the process that removes folders."""
_MAX_WAITING = 8
"""Maximum number of folders that may wait to be removed."""


class Removal:
    """Removes folders of one sandbox in a separate process, which continues if the worker dies.

    If the separate process dies before it has removed all folders, the next separate process removes the remaining
    folders. Any thread may use this object.

    Args:
        root: an existing folder that only this sandbox uses, and that is on the same file system as the folders to
            remove.
    """

    def __init__(self, root: Path) -> None:
        self._folder = root / "removed"
        self._process: subprocess.Popen[bytes] | None = None
        self._starting = threading.Lock()
        """Locked while `_process` is replaced, but not while a thread waits for the process."""

    def take(self, path: Path, *, wait: bool = True) -> None:
        """Move a folder away, if it exists, and remove it in the background. Raises OSError if the move fails.

        Args:
            path: the folder to remove.
            wait: the same as the argument `wait` of `sweep`.
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
            wait: whether to wait up to `_WAIT_S` seconds if too many folders are not yet removed. Use False when moving
                many folders one after the other.
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
        """Wait up to `_CLOSE_S` seconds for the process that removes folders.

        If the process needs longer, the process continues after `close` has returned.
        """
        self.sweep(wait=False)
        self._wait(_CLOSE_S)

    def _wait(self, seconds: float) -> None:
        """Wait at most this many seconds until the process that removes folders has ended."""
        process = self._process
        if process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(seconds)
