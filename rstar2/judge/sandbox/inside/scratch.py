"""The space programs may write: one small file system in memory, found empty by every program."""

from __future__ import annotations

import os
import stat


def _use(place: str) -> tuple[int, int]:
    """(files, blocks) in use on the file system that holds `place`."""
    numbers = os.statvfs(place)
    return numbers.f_files - numbers.f_ffree, numbers.f_blocks - numbers.f_bfree


class Scratch:
    """Knows what an empty scratch space looks like and brings it back to that.

    Args:
        places: the folders programs may write, all on one file system that nothing else uses.
    """

    def __init__(self, places: tuple[str, ...]) -> None:
        self._places = places
        self._empty = _use(places[0])

    def clean(self) -> bool:
        """Remove whatever a program left; False where something could not be removed.

        Costs one system call where nothing was left. Only call it when the program's processes are gone.
        """
        if _use(self._places[0]) == self._empty:
            return True
        try:
            for place in self._places:
                _empty_out(place)
        except OSError:
            return False
        return _use(self._places[0]) == self._empty


def _empty_out(place: str) -> None:
    """Remove everything below `place`.

    Folders below the first level are moved up to it before they are emptied, so that neither the depth of a
    tree nor the length of its paths matters.
    """
    moved = 0
    while names := os.listdir(place):
        for name in names:
            path = f"{place}/{name}"
            if not stat.S_ISDIR(os.lstat(path).st_mode):
                os.unlink(path)
                continue
            os.chmod(path, 0o700)
            for inner in os.listdir(path):
                if not stat.S_ISDIR(os.lstat(f"{path}/{inner}").st_mode):
                    os.unlink(f"{path}/{inner}")
                    continue
                moved = _move_up(f"{path}/{inner}", place, moved)
            os.rmdir(path)


def _move_up(path: str, place: str, moved: int) -> int:
    """Rename a folder to a free name directly below `place`; how many names were tried in all."""
    while True:
        moved += 1
        target = f"{place}/.{moved}"
        if not os.path.lexists(target):
            os.rename(path, target)
            return moved
