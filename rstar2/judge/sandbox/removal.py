"""Takes folders out of the way at once, and removes them in the background, however much is in them."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import subprocess
import sys
import uuid
from pathlib import Path

from rstar2.judge.sandbox import rootfs

_WAIT_S = 20.0
"""How long to wait for the process, where too much is left to remove, and at the end."""
_MOST_WAITING = 8
"""Folders that may wait to be removed."""
log = logging.getLogger(__name__)


class Removal:
    """Removes folders of one sandbox by one process at a time, which goes on when the worker dies.

    If that process dies too, the next one removes what is left.

    Args:
        root: an existing folder for this sandbox alone, on the file system of the folders to remove.
    """

    def __init__(self, root: Path) -> None:
        self._folder = root / "removed"
        self._process: subprocess.Popen[bytes] | None = None

    def take(self, path: Path) -> None:
        """Rename a folder, if it exists, and remove it. OSError where it cannot be renamed."""
        with contextlib.suppress(FileNotFoundError):
            try:
                path.rmdir()
            except OSError as error:
                if error.errno != errno.ENOTEMPTY:
                    raise
                self._folder.mkdir(exist_ok=True)
                path.rename(self._folder / uuid.uuid4().hex)
                self.sweep()

    def sweep(self) -> None:
        """Remove what was taken away so far, also by an earlier worker in the same folder."""
        if not self._folder.exists():
            return
        waiting = len(os.listdir(self._folder))
        if waiting > _MOST_WAITING:
            self._wait()
        if not waiting or (self._process is not None and self._process.poll() is None):
            return
        self._wait()
        start = (
            f"import sys; sys.path.insert(0, {str(Path(__file__).resolve().parents[3])!r}); "
            "from rstar2.judge.sandbox.inside.scratch import remove_in_background as remove; "
            "remove(sys.argv[1])"
        )
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", start, str(self._folder)], env=rootfs.ENVIRONMENT, cwd="/"
        )

    def close(self) -> None:
        """Wait a while until everything is removed; what is not then is left to the next worker."""
        self.sweep()
        self._wait()

    def _wait(self) -> None:
        """Wait for the process; if it is not done in time, it is killed."""
        if self._process is None:
            return
        with self._process:
            try:
                self._process.wait(_WAIT_S)
            except subprocess.TimeoutExpired:
                log.warning("removing %s takes long; the next time continues with it", self._folder)
                self._process.kill()
        self._process = None
