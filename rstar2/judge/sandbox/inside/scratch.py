"""Empties the folders that programs may write, so that every program finds them empty."""

from __future__ import annotations

import _socket
import os
import stat
import time

from rstar2.judge.sandbox.inside import syscalls

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

_FREE_TIMEOUT_S = 0.1
"""How long the kernel may take to free files that no process holds any longer."""
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Scratch:
    """Records what the empty scratch space looks like, and restores that.

    Args:
        folders: the ones that programs may write.
        dedicated: they are all on one file system that nothing else uses, so that its counters say whether there
            is anything to remove.
    """

    def __init__(self, folders: tuple[str, ...], *, dedicated: bool) -> None:
        self._folders = folders
        self._dedicated = dedicated
        self.take_snapshot()

    def take_snapshot(self) -> None:
        """Record what is there now as empty."""
        self._empty = [set(os.listdir(folder)) for folder in self._folders]
        self._usage_when_empty = self._usage()

    def _usage(self) -> tuple[int, int]:
        """(files, blocks) in use."""
        if not self._dedicated:
            return 0, 0
        numbers = os.statvfs(self._folders[0])
        return numbers.f_files - numbers.f_ffree, numbers.f_blocks - numbers.f_bfree

    def is_clean(self) -> bool:
        """Whether it is empty; one system call where the file system is dedicated."""
        if self._dedicated:
            return self._usage() == self._usage_when_empty
        try:
            return all(syscalls.is_empty_folder(folder) for folder in self._folders)
        except OSError:
            return False

    def _pairs(self) -> Iterator[tuple[str, set[str]]]:
        return zip(self._folders, self._empty, strict=True)

    def clean(self) -> bool:
        """Remove whatever a program left; False where something could not be removed.

        Call it only when the program's processes have ended.
        """
        try:
            for folder, kept in self._pairs():
                remove_contents(folder, kept)
        except OSError:
            return False
        deadline = time.monotonic() + _FREE_TIMEOUT_S
        while self._usage() != self._usage_when_empty:
            if time.monotonic() > deadline:
                return False
            _collect_sockets()
            time.sleep(0.001)
        return True


def _collect_sockets() -> None:
    """Have the kernel free local sockets that only refer to each other, and the files sent over them.

    It looks for them, in a thread of its own, when some local socket is closed; a process that ends does not count.
    """
    for end in _socket.socketpair():
        end.close()


def remove_contents(folder: str, kept: set[str]) -> None:
    """Remove everything below `folder` but the names in `kept`. Nobody else may be writing there.

    It goes down and up one folder at a time, so that neither the depth of a tree nor the length of its paths
    matters, and changes the disk once per file and folder. OSError: something could not be removed.
    """
    here = os.open(folder, _FOLDER)
    path: list[str] = []
    left = [_unlink_all(here, kept)]
    try:
        while path or left[-1]:
            if left[-1]:
                path.append(left[-1].pop())
                here = _step(path[-1], here)
                mode = os.fstat(here).st_mode
                if mode & stat.S_IRWXU != stat.S_IRWXU:
                    os.fchmod(here, 0o700)
                left.append(_unlink_all(here, set()))
            else:
                left.pop()
                here = _step("..", here)
                os.rmdir(path.pop(), dir_fd=here)
    finally:
        os.close(here)


def _step(name: str, here: int) -> int:
    """Close an open folder and open the one of this name in it."""
    try:
        there = os.open(name, _FOLDER, dir_fd=here)
    except PermissionError:
        os.chmod(name, 0o700, dir_fd=here)
        there = os.open(name, _FOLDER, dir_fd=here)
    os.close(here)
    return there


def _unlink_all(here: int, kept: set[str]) -> list[str]:
    """Remove the files and the empty folders in an open folder. Returns the names of the other folders."""
    with os.scandir(here) as entries:
        found = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
    folders = []
    for name, is_folder in found:
        if name in kept:
            continue
        if not is_folder:
            os.unlink(name, dir_fd=here)
            continue
        try:
            os.rmdir(name, dir_fd=here)
        except OSError:
            folders.append(name)
    return folders
