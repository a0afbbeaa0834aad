"""The space programs may write, found empty by every program."""

from __future__ import annotations

import _socket
import os
import stat
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

_FREE_TIMEOUT_S = 0.1
"""How long the kernel may take to free files that nobody holds any more."""
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Scratch:
    """Knows what an empty scratch space looks like and brings it back to that.

    Args:
        places: the folders programs may write.
        own: they all lie on one file system that nothing else uses, so that its counters tell whether there
            is anything to remove.
    """

    def __init__(self, folders: tuple[str, ...], *, dedicated: bool) -> None:
        self._folders = folders
        self._dedicated = dedicated
        self.take_snapshot()

    def take_snapshot(self) -> None:
        """Take what is there now for empty."""
        self._empty = [set(os.listdir(folder)) for folder in self._folders]
        self._usage_when_empty = self._usage()

    def _usage(self) -> tuple[int, int]:
        """(files, blocks) in use."""
        if not self._dedicated:
            return 0, 0
        numbers = os.statvfs(self._folders[0])
        return numbers.f_files - numbers.f_ffree, numbers.f_blocks - numbers.f_bfree

    def is_clean(self) -> bool:
        """Whether it is empty; one system call where the space is our own."""
        if self._dedicated:
            return self._usage() == self._usage_when_empty
        try:
            return all(set(os.listdir(folder)) <= kept for folder, kept in self._pairs())
        except OSError:
            return False

    def _pairs(self) -> Iterator[tuple[str, set[str]]]:
        return zip(self._folders, self._empty, strict=True)

    def clean(self) -> bool:
        """Remove whatever a program left; False where something could not be removed.

        Only call it when the program's processes are gone.
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
    """Have the kernel look for local sockets that hold only one another, and the files sent over them.

    It does so, in a thread of its own, when some local socket is closed; the end of their process is none.
    """
    for end in _socket.socketpair():
        end.close()


def remove_contents(folder: str, kept: set[str]) -> None:
    """Remove everything below `place` but the names in `kept`. Nobody else may be writing there.

    It goes down and up by one folder at a time, so that neither the depth of a tree nor the length of its
    paths matters, and asks little of the disk: one change for each file and folder.

    Raises:
        OSError: something could not be removed.
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
    """Exchange an open folder for the one of this name in it."""
    try:
        there = os.open(name, _FOLDER, dir_fd=here)
    except PermissionError:
        os.chmod(name, 0o700, dir_fd=here)
        there = os.open(name, _FOLDER, dir_fd=here)
    os.close(here)
    return there


def _unlink_all(here: int, kept: set[str]) -> list[str]:
    """Remove the files and the empty folders of an open folder; the names of the other folders."""
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
