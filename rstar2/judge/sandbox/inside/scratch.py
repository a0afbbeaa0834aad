"""Limits the size and number of files that programs write. Empties the programs' folders, so that every program finds
them empty.

`remove_in_background` runs in a separate process outside the jail.
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
"""Quota of a program or a session: its disk space in MiB, and its number of files and folders."""
_MAX_DEPTH = 128
"""A folder exceeds the quota if folders in it are nested more deeply than this. The limit on nesting applies if no file
system enforces the quota."""
_FREE_TIMEOUT_S = 0.1
"""Seconds that the kernel may take to free files that no process has open."""
_CLEAN_TIMEOUT_S = 0.1
"""The next program waits at most this many seconds until files on a disk are removed. If some files are left after this
time, the whole folder is moved away.
"""
_NO_LIMIT = float("inf")
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Scratch:
    """Records what the scratch space contains before the first program runs, and restores these contents.

    Args:
        folders: the folders to which programs may write.
        dedicated: whether all folders are on one file system that nothing else uses. If True, the number of files and
            blocks in use on the file system shows whether there is anything to remove.
        changeable: folders whose permissions and times programs may change, because the folders belong to the programs'
            user.
    """

    def __init__(
        self, folders: tuple[str, ...], *, dedicated: bool, changeable: tuple[str, ...] = ()
    ) -> None:
        self._folders = folders
        self._dedicated = dedicated
        self._changeable = changeable
        self.take_snapshot()

    def take_snapshot(self) -> None:
        """Record the present contents of the folders. `clean` restores these contents."""
        self._empty = [set(os.listdir(folder)) for folder in self._folders]
        self._usage_when_empty = self._usage()
        self._attributes = [_attributes(folder) for folder in self._changeable]

    def _usage(self) -> tuple[int, int]:
        """Returns the number of files and the number of blocks in use on the file system of the scratch folders."""
        if not self._dedicated:
            return 0, 0
        numbers = os.statvfs(self._folders[0])
        return numbers.f_files - numbers.f_ffree, numbers.f_blocks - numbers.f_bfree

    def restore_attributes(self) -> None:
        """If a program has changed the permissions or times of a folder, restore them."""
        for folder, (mode, accessed, modified) in zip(self._changeable, self._attributes, strict=True):
            if _attributes(folder) != (mode, accessed, modified):
                os.chmod(folder, mode)
                os.utime(folder, ns=(accessed, modified))

    def is_clean(self) -> bool:
        """Returns whether the scratch space is empty. On a dedicated file system, `is_clean` takes one system call."""
        if self._dedicated:
            return self._usage() == self._usage_when_empty
        try:
            return all(syscalls.is_empty_folder(folder) for folder in self._folders)
        except OSError:
            return False

    def _pairs(self) -> Iterator[tuple[str, set[str]]]:
        return zip(self._folders, self._empty, strict=True)

    def clean(self) -> bool:
        """Remove all files that a program left. Returns False if some files could not be removed in time.

        Call `clean` only after all processes of the program have ended.
        """
        # On a dedicated file system there is no time limit: it is small, and files that remain would use memory.
        seconds = _NO_LIMIT if self._dedicated else _CLEAN_TIMEOUT_S
        try:
            for folder, names in self._pairs():
                remove_contents(folder, names, seconds)
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
    """Returns a folder's permissions, and the times in nanoseconds at which it was last accessed and last changed."""
    status = os.stat(folder)
    return stat.S_IMODE(status.st_mode), status.st_atime_ns, status.st_mtime_ns


def _collect_sockets() -> None:
    """Make the kernel free unused Unix sockets that only refer to each other, and the files sent over these sockets.

    Whenever a running process closes a Unix socket, a separate thread of the kernel looks for unused sockets and frees
    them.
    """
    for end in _socket.socketpair():
        end.close()


class _Moved(Exception):
    """A file or folder was moved or removed before it could be counted."""


def bytes_of_deleted_files(pids: list[int], folder: str) -> int:
    """Returns how many bytes on disk are taken by deleted files that the processes `pids` still use.

    If a process maps a deleted file of this folder but does not have the file open, the file's size is unknown, and the
    file counts as the whole quota. Python itself keeps open every file that it memory-maps.
    """
    # A program's standard input does not count: it is a file in memory that never had a name.
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


def is_over_quota(folder: str, other_bytes: int = 0) -> bool | None:
    """Returns whether a program's folder exceeds the quota. The program may write to the folder while the function
    measures it.

    Args:
        folder: the program's folder.
        other_bytes: bytes on disk of the program's files that are not in the folder.

    Returns:
        None if the counted files do not exceed the quota, but other files were moved or removed before they could be
        counted.
    """
    remaining_bytes = (MAX_MB << 20) - other_bytes
    if remaining_bytes < 0:
        return True
    try:
        folder_fd = os.open(folder, _FOLDER)
    except OSError:
        return False
    try:
        return not _fits(folder_fd, [MAX_INODES, remaining_bytes], _MAX_DEPTH)
    except _Moved:
        return None


def _fits(folder_fd: int, remaining: list[int], depth: int) -> bool:
    """Returns whether the contents of an open folder fit into the remaining quota. The function closes `folder_fd`.

    Args:
        folder_fd: file descriptor of the folder.
        remaining: the remaining quota, as a list of two numbers: inodes and bytes. The function subtracts the folder's
            contents from both.
        depth: how deeply folders may be nested in this folder.

    Raises:
        _Moved: a file or folder could not be counted.
    """
    folders = []
    try:
        with os.scandir(folder_fd) as entries:
            for entry in entries:
                remaining[0] -= 1
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.name)
                else:
                    remaining[1] -= _bytes_on_disk(entry)
                if min(remaining) < 0 or depth == 0:
                    return False
        return all(_fits(child_fd, remaining, depth - 1) for child_fd in _open_folders(folders, folder_fd))
    finally:
        os.close(folder_fd)


def _bytes_on_disk(entry: os.DirEntry[str]) -> int:
    try:
        return entry.stat(follow_symlinks=False).st_blocks * 512
    except FileNotFoundError as error:
        raise _Moved from error


def _open_folders(names: list[str], parent_fd: int) -> Iterator[int]:
    """Open folders one after the other. If a folder lacks read permission for its owner, add the permission first."""
    for name in names:
        try:
            handle = os.open(name, _FOLDER | os.O_PATH, dir_fd=parent_fd)
        except OSError as error:
            raise _Moved from error
        try:
            # Opened by this handle, because the program may replace the name by a link.
            path = f"/proc/self/fd/{handle}"
            if not os.access(path, os.R_OK | os.X_OK, effective_ids=True):
                os.chmod(path, 0o700)
            folder_fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            continue
        finally:
            os.close(handle)
        yield folder_fd


def remove_in_background(folder: str) -> None:
    """Remove everything in a folder at the lowest CPU priority.

    During the removal, more folders may be moved into the folder.
    """
    os.nice(19)
    while os.path.isdir(folder) and os.listdir(folder):
        try:
            remove_contents(folder, set())
        except FileNotFoundError:  # the process of a worker that died is emptying the folder, too
            continue


def remove_contents(folder: str, excluded: set[str], seconds: float = _NO_LIMIT) -> None:
    """Remove everything in a folder except the names in `excluded`. No other process may write to the folder during the
    removal.

    The function opens one folder at a time, so that folders may be nested to any depth and paths may have any length.

    Raises:
        OSError: a file or folder could not be removed.
        TimeoutError: the removal takes longer than `seconds`.
    """
    deadline = time.monotonic() + seconds
    folder_fd = os.open(folder, _FOLDER)
    path: list[str] = []
    remaining: list[list[str]] = []
    try:
        remaining.append(_unlink_all(folder_fd, excluded, deadline))
        while path or remaining[-1]:
            if remaining[-1]:
                path.append(remaining[-1].pop())
                folder_fd = _open_next(path[-1], folder_fd)
                mode = os.fstat(folder_fd).st_mode
                if mode & stat.S_IRWXU != stat.S_IRWXU:
                    os.fchmod(folder_fd, 0o700)
                remaining.append(_unlink_all(folder_fd, set(), deadline))
            else:
                remaining.pop()
                folder_fd = _open_next("..", folder_fd)
                os.rmdir(path.pop(), dir_fd=folder_fd)
    finally:
        os.close(folder_fd)


def _open_next(name: str, folder_fd: int) -> int:
    """Open the folder `name` inside an open folder, and close the outer folder. Returns the descriptor of `name`."""
    try:
        next_fd = os.open(name, _FOLDER, dir_fd=folder_fd)
    except PermissionError:
        os.chmod(name, 0o700, dir_fd=folder_fd)
        next_fd = os.open(name, _FOLDER, dir_fd=folder_fd)
    os.close(folder_fd)
    return next_fd


def _unlink_all(folder_fd: int, excluded: set[str], deadline: float) -> list[str]:
    """Remove all files and empty folders in an open folder.

    Returns the names of the folders that are not empty. Raises TimeoutError after the deadline, which is a time in
    monotonic seconds.
    """
    with os.scandir(folder_fd) as entries:
        names = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
    folders = []
    for name, is_folder in names:
        if name in excluded:
            continue
        if time.monotonic() > deadline:
            raise TimeoutError
        if not is_folder:
            os.unlink(name, dir_fd=folder_fd)
            continue
        try:
            os.rmdir(name, dir_fd=folder_fd)
        except OSError:
            folders.append(name)
    return folders
