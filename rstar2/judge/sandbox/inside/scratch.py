"""Limits what programs write, and empties their folders, so that every program finds them empty.

`remove_in_background` runs in a process of its own, outside.
"""

from __future__ import annotations

import _socket
import os
import stat
import time

from rstar2.judge.sandbox.inside import processes, syscalls

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_MB, MAX_INODES = 256, 16384
"""What a program, or a session, may keep: MiB, and files and folders."""
_MAX_DEPTH = 128
"""More nested folders count as more than a program may keep, where there is no file system to say so."""
_FREE_TIMEOUT_S = 0.1
"""How long the kernel may take to free files that no process holds any longer."""
_CLEAN_TIMEOUT_S = 0.1
"""How long removing files from a disk may hold up the next program; what takes longer is taken out of the way."""
_NO_LIMIT = float("inf")
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Scratch:
    """Records what the empty scratch space looks like, and restores that.

    Args:
        folders: the ones that programs may write.
        dedicated: they are all on one file system that nothing else uses, so that its counters say whether there
            is anything to remove.
        changeable: folders of the user that programs run as, who may thus change their modes and times.
    """

    def __init__(
        self, folders: tuple[str, ...], *, dedicated: bool, changeable: tuple[str, ...] = ()
    ) -> None:
        self._folders = folders
        self._dedicated = dedicated
        self._changeable = changeable
        self.take_snapshot()

    def take_snapshot(self) -> None:
        """Record what is there now as empty."""
        self._empty = [set(os.listdir(folder)) for folder in self._folders]
        self._usage_when_empty = self._usage()
        self._attributes = [_attributes(folder) for folder in self._changeable]

    def _usage(self) -> tuple[int, int]:
        """(files, blocks) in use."""
        if not self._dedicated:
            return 0, 0
        numbers = os.statvfs(self._folders[0])
        return numbers.f_files - numbers.f_ffree, numbers.f_blocks - numbers.f_bfree

    def restore_attributes(self) -> None:
        """Give folders the modes and times back that a program has changed."""
        for folder, (mode, accessed, modified) in zip(self._changeable, self._attributes, strict=True):
            if _attributes(folder) != (mode, accessed, modified):
                os.chmod(folder, mode)
                os.utime(folder, ns=(accessed, modified))

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
        """Remove whatever a program left; False where something could not be removed, or not soon.

        Call it only when the program's processes have ended.
        """
        # A dedicated file system holds only so much, and what stays in it stays in memory.
        seconds = _NO_LIMIT if self._dedicated else _CLEAN_TIMEOUT_S
        try:
            for folder, kept in self._pairs():
                remove_contents(folder, kept, seconds)
        except OSError:
            return False
        deadline = time.monotonic() + _FREE_TIMEOUT_S
        while self._usage() != self._usage_when_empty:
            if time.monotonic() > deadline:
                return False
            _collect_sockets()
            time.sleep(0.001)
        return True


def _attributes(folder: str) -> tuple[int, int, int]:
    """(permissions, and in nanoseconds when it was last read and last changed)."""
    found = os.stat(folder)
    return stat.S_IMODE(found.st_mode), found.st_atime_ns, found.st_mtime_ns


def _collect_sockets() -> None:
    """Have the kernel free local sockets that only refer to each other, and the files sent over them.

    It looks for them, in a thread of its own, when some local socket is closed; a process that ends does not count.
    """
    for end in _socket.socketpair():
        end.close()


class _Moved(Exception):
    """A file or folder was no longer there when it was its turn."""


def bytes_of_deleted_files(pids: list[int], folder: str) -> int:
    """Bytes on disk of the deleted files that processes hold open.

    A file deleted from this folder that is only mapped counts as the largest there can be, because the kernel does not
    tell its size to everyone. Python keeps what it maps open.
    """
    # A program's input is a file in memory, which never had a name.
    with open(os.memfd_create("input"), "rb") as memory:
        memory_device = os.fstat(memory.fileno()).st_dev
    sizes = {
        file.st_ino: file.st_blocks * 512
        for pid in pids
        for file in processes.open_files(pid)
        if stat.S_ISREG(file.st_mode) and not file.st_nlink and file.st_dev != memory_device
    }
    for pid in pids:
        try:
            with open(f"/proc/{pid}/maps", "rb") as maps:
                deleted = [line.split(maxsplit=5)[4:] for line in maps if line.endswith(b" (deleted)\n")]
        except OSError:  # it has ended
            continue
        for inode, path in deleted:
            if path.startswith(os.fsencode(f"{folder}/")):
                sizes.setdefault(int(inode), MAX_MB << 20)
    return sum(sizes.values())


def is_over_quota(folder: str, held_bytes: int = 0) -> bool | None:
    """Whether there is more below a folder, in which a program may be writing, than one may keep.

    Args:
        held_bytes: what it keeps elsewhere.

    Returns:
        None if what was seen is not too much, but something was moved or removed meanwhile.
    """
    left_bytes = (MAX_MB << 20) - held_bytes
    if left_bytes < 0:
        return True
    try:
        here = os.open(folder, _FOLDER)
    except OSError:
        return False
    try:
        return not _fits(here, [MAX_INODES, left_bytes], _MAX_DEPTH)
    except _Moved:
        return None


def _fits(here: int, left: list[int], depth: int) -> bool:
    """Subtract what is below an open folder, which this closes, from the inodes and bytes that are left.

    Raises:
        _Moved: something could not be counted.
    """
    folders = []
    try:
        with os.scandir(here) as entries:
            for entry in entries:
                left[0] -= 1
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.name)
                else:
                    left[1] -= _bytes_on_disk(entry)
                if min(left) < 0 or depth == 0:
                    return False
        return all(_fits(below, left, depth - 1) for below in _open_folders(folders, here))
    finally:
        os.close(here)


def _bytes_on_disk(entry: os.DirEntry[str]) -> int:
    try:
        return entry.stat(follow_symlinks=False).st_blocks * 512
    except FileNotFoundError as error:
        raise _Moved from error


def _open_folders(names: list[str], here: int) -> Iterator[int]:
    """Open folders one after the other, also those that their owner may not read."""
    for name in names:
        try:
            handle = os.open(name, _FOLDER | os.O_PATH, dir_fd=here)
        except OSError as error:
            raise _Moved from error
        try:
            # By this handle, since the program may put a link in place of the name.
            path = f"/proc/self/fd/{handle}"
            if not os.access(path, os.R_OK | os.X_OK, effective_ids=True):
                os.chmod(path, 0o700)
            below = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            continue
        finally:
            os.close(handle)
        yield below


def remove_in_background(folder: str) -> None:
    """Empty a folder into which others are moved meanwhile, when nothing else wants the processor."""
    os.nice(19)
    while os.path.isdir(folder) and os.listdir(folder):
        try:
            remove_contents(folder, set())
        except FileNotFoundError:  # another such process, of a worker that died, is at it too
            continue


def remove_contents(folder: str, kept: set[str], seconds: float = _NO_LIMIT) -> None:
    """Remove everything below `folder` but the names in `kept`. Nobody else may be writing there.

    It goes down and up one folder at a time, so that neither the depth of a tree nor the length of its paths
    matters, and changes the disk once per file and folder. OSError: something could not be removed. TimeoutError:
    it takes longer than `seconds`.
    """
    deadline = time.monotonic() + seconds
    here = os.open(folder, _FOLDER)
    path: list[str] = []
    left: list[list[str]] = []
    try:
        left.append(_unlink_all(here, kept, deadline))
        while path or left[-1]:
            if left[-1]:
                path.append(left[-1].pop())
                here = _step(path[-1], here)
                mode = os.fstat(here).st_mode
                if mode & stat.S_IRWXU != stat.S_IRWXU:
                    os.fchmod(here, 0o700)
                left.append(_unlink_all(here, set(), deadline))
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


def _unlink_all(here: int, kept: set[str], deadline: float) -> list[str]:
    """Remove the files and the empty folders in an open folder. Returns the names of the other folders.

    TimeoutError: the deadline, on the monotonic clock, has passed.
    """
    with os.scandir(here) as entries:
        found = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
    folders = []
    for name, is_folder in found:
        if name in kept:
            continue
        if time.monotonic() > deadline:
            raise TimeoutError
        if not is_folder:
            os.unlink(name, dir_fd=here)
            continue
        try:
            os.rmdir(name, dir_fd=here)
        except OSError:
            folders.append(name)
    return folders
