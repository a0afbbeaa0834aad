"""The logs of the processes of a judge or a server. The logs are private and rotated.

`rstar2 judge logs` and `rstar2 serve logs` show these logs. A part is one process.
"""

from __future__ import annotations

import logging
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from rstar2.files import private_file

TAIL_BYTES = 1 << 20
POLL_S = 0.2
ROTATE_EVERY_S = 2.0
log = logging.getLogger(__name__)


def private_log(folder: Path, part: str) -> Path:
    """Returns the path of one part's log, `<part>.log` in `folder`. Only this user can read the log.

    Creates the log file if it is missing.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.chmod(0o700)
    return private_file(folder / f"{part}.log")


def rotate(folder: Path, max_bytes: int) -> None:
    """Move the contents of each log that is longer than `max_bytes` to `<part>.log.1`.

    The parts keep their logs open for appending. A log is therefore copied, and then emptied in place. Lines that are
    written between these two steps are lost.
    """
    for path in folder.glob("*.log"):
        try:
            if path.stat().st_size > max_bytes:
                _rotate_one(path)
        except OSError as error:
            log.warning("%s cannot be rotated: %s", path.name, error)


def _rotate_one(path: Path) -> None:
    try:
        shutil.copy(path, path.with_name(f"{path.name}.1"))
    except OSError as error:
        log.warning("%s is emptied without a copy: %s", path.name, error)
    os.truncate(path, 0)


class Rotation:
    """Rotates the logs of a folder, but not more often than every `ROTATE_EVERY_S` seconds."""

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self._folder = folder
        self._max_bytes = max_bytes
        self._due_at = 0.0

    def rotate_if_due(self) -> None:
        if time.monotonic() >= self._due_at:
            rotate(self._folder, self._max_bytes)
            self._due_at = time.monotonic() + ROTATE_EVERY_S


def tail(path: Path, count: int, size: int | None = None) -> list[str]:
    """Returns the last `count` lines of a file. If `size` is given, only the first `size` bytes of the file are
    considered. At most the last MiB is read.
    """
    with path.open("rb") as file:
        end = file.seek(0, 2) if size is None else size
        start = file.seek(max(0, end - TAIL_BYTES))
        return file.read(end - start).decode("utf-8", "replace").splitlines()[-count:] if count else []


def end_of(path: Path, count: int = 15) -> str:
    """Returns the last lines of a log, for the hint of an error."""
    return "\n".join([f"The end of its log, {path}:", *tail(path, count)])


def logs_of(folder: Path, part: str) -> list[Path]:
    """Returns the logs in a folder. Only logs whose name begins with `part` are returned."""
    return sorted(path for path in folder.glob("*.log") if path.name.startswith(part))


def follow(
    folder: Path, part: str = "", count: int = 0, ended: Callable[[], bool] = lambda: False
) -> Iterator[tuple[str, str]]:
    """Yield the last `count` lines of each log in `folder`, and then each new line, as (part, line).

    Only logs whose name begins with `part` are followed, including logs that are created later. The iteration ends when
    `ended` returns true.
    """
    read_up_to = {path: path.stat().st_size for path in logs_of(folder, part)}
    for path, size in read_up_to.items():
        for line in tail(path, count, size):
            yield path.stem, line
    while not ended():
        for path in logs_of(folder, part):
            with path.open("rb") as file:
                if file.seek(0, 2) < read_up_to.get(path, 0):
                    read_up_to[path] = 0  # the log was rotated
                file.seek(read_up_to.get(path, 0))
                data = file.read()
            complete = data[: data.rfind(b"\n") + 1]
            read_up_to[path] = read_up_to.get(path, 0) + len(complete)
            for line in complete.decode("utf-8", "replace").splitlines():
                yield path.stem, line
        time.sleep(POLL_S)
