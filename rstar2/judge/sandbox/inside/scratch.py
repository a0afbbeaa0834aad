"""The space programs may write, found empty by every program."""

from __future__ import annotations

import os
import stat


class Scratch:
    """Knows what an empty scratch space looks like and brings it back to that.

    Args:
        places: the folders programs may write.
        own: they all lie on one file system that nothing else uses, so that its counters tell whether there
            is anything to remove.
    """

    def __init__(self, places: tuple[str, ...], *, own: bool) -> None:
        self._places = places
        self._own = own
        self._empty = [set(os.listdir(place)) for place in places]
        self._use = self._measure()

    def _measure(self) -> tuple[int, int]:
        """(files, blocks) in use."""
        if not self._own:
            return 0, 0
        numbers = os.statvfs(self._places[0])
        return numbers.f_files - numbers.f_ffree, numbers.f_blocks - numbers.f_bfree

    def clean(self) -> bool:
        """Remove whatever a program left; False where something could not be removed.

        Costs one system call where nothing was left. Only call it when the program's processes are gone.
        """
        if self._own and self._measure() == self._use:
            return True
        try:
            for place, kept in zip(self._places, self._empty, strict=True):
                _empty_out(place, kept)
        except OSError:
            return False
        return self._measure() == self._use


def _empty_out(place: str, kept: set[str]) -> None:
    """Remove everything below `place` but the names in `kept`.

    Folders below the first level are moved up to it before they are emptied, so that neither the depth of a
    tree nor the length of its paths matters.
    """
    moved = 0
    while names := set(os.listdir(place)) - kept:
        for name in names:
            path = f"{place}/{name}"
            if not _is_folder(path):
                os.unlink(path)
                continue
            os.chmod(path, 0o700)
            for inner in os.listdir(path):
                if _is_folder(f"{path}/{inner}"):
                    os.chmod(f"{path}/{inner}", 0o700)
                    moved = _move_up(f"{path}/{inner}", place, moved)
                else:
                    os.unlink(f"{path}/{inner}")
            os.rmdir(path)


def _is_folder(path: str) -> bool:
    return stat.S_ISDIR(os.lstat(path).st_mode)


def _move_up(path: str, place: str, moved: int) -> int:
    """Rename a folder to a free name directly below `place`; how many names were tried in all."""
    while True:
        moved += 1
        target = f"{place}/.{moved}"
        if not os.path.lexists(target):
            os.rename(path, target)
            return moved
