"""Atomic writes of files and folders, readers for JSON, JSON Lines and CSV, and an appending writer for JSON Lines."""

from __future__ import annotations

import csv
import errno
import json
import mmap
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, TextIO

from rstar2.errors import Failure, UserError


def read_objects(
    path: Path,
    hint: str,
    *,
    decimals_as_text: bool = False,
    on_fault: Callable[[int, str], None] | None = None,
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields each object of a user's JSON Lines file (jsonlines.org) with its line number. Blank lines are skipped.

    Args:
        hint: the hint of every UserError.
        decimals_as_text: whether a number with a decimal point is returned as text, with the same digits as in the
            file.
        on_fault: called with the line number and the fault of each bad line. If `on_fault` is given, bad lines are
            skipped. If `on_fault` is None, a bad line is an error.

    Raises:
        UserError: the file cannot be read or is not UTF-8, or a line is not one JSON object.
    """
    for number, line in enumerate(_lines(path, hint), 1):
        if not line.strip():
            continue
        fault = ""
        try:
            value = json.loads(line, parse_float=str if decimals_as_text else float, parse_constant=_refuse)
            if not isinstance(value, dict):
                fault = f"not a JSON object but {type(value).__name__}"
        except (ValueError, RecursionError) as error:
            fault = f"not JSON: {error}"
        if not fault:
            yield number, value
        elif on_fault is None:
            raise UserError(f"{path}, line {number}: {fault}", hint)
        else:
            on_fault(number, fault)


def read_csv(path: Path, hint: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields each row of a user's CSV file, or of a `.tsv` file with tabs, with the row's number. Row numbers begin at
    1.

    The first line has the names of the columns. All values are texts. If a row lacks its last cells, the missing values
    are None.

    Raises:
        UserError: the file cannot be read, is not UTF-8 or not CSV, or a row has more cells than there are columns.
            `hint` is the hint of the error.
    """
    csv.field_size_limit(sys.maxsize)  # outputs of models are longer than the default limit
    delimiter = "\t" if path.suffix.lower() == ".tsv" else ","
    rows = csv.DictReader(_lines(path, hint, newline=""), delimiter=delimiter, strict=True)
    try:
        for number, row in enumerate(rows, 1):
            if None in row:
                raise UserError(
                    f"{path}, row {number}: it has more cells than the first line has columns", hint
                )
            yield number, row
    except csv.Error as error:
        raise UserError(f"{path}, line {rows.reader.line_num}: not CSV: {error}", hint) from error


def _lines(path: Path, hint: str, newline: str = "\n") -> Iterator[str]:
    """Yields the lines of a text file. Raises UserError if the file cannot be read."""
    try:
        # splitlines() would also split at characters that JSON allows in strings.
        with path.open(encoding="utf-8-sig", newline=newline) as file:
            yield from file
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}", hint) from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text: {error.reason} at byte {error.start}", hint) from error


def _refuse(text: str) -> None:
    raise ValueError(f"{text} is not a JSON value")


def read_json(path: Path) -> Any:
    """Returns the value of a JSON file, or None if there is no such file.

    Raises UserError if the file cannot be read.
    """
    if not path.exists():
        return None
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(
            f"cannot read {path}: {error}", "Remove that file and run the command again."
        ) from error


def write_json(path: Path, value: object) -> None:
    """Write JSON so that the file is either whole or absent."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def write_text(path: Path, text: str, mode: int = 0o666) -> None:
    """Write text so that the file is either whole or absent. The file's permissions are `mode` without those that the
    umask removes.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path, mode) as file:
        file.write(text)


def home_folder() -> Path:
    """Returns the user's home directory.

    Raises UserError if the user has no home directory, for example because the user id has no name.
    """
    try:
        return Path.home()
    except RuntimeError as error:
        raise UserError(
            f"the user with id {os.getuid()} has no home directory",
            "Set HOME to a folder that this user may write to.",
        ) from error


def private_file(path: Path) -> Path:
    """Makes a file that only this user can read, and the file's folder, unless the file exists. Returns the path of the
    file.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.close(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600))
    path.chmod(0o600)
    return path


class LineWriter(AbstractContextManager["LineWriter"]):
    """Appends lines to a JSON Lines file, each with one write. Raises OSError if a write fails, as on a full disk.

    If an earlier process was killed in the middle of its last line, that line is removed first.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        _drop_torn_line(path)
        self._file = path.open("ab", buffering=0)

    def write(self, line: str) -> None:
        """Append one line. `line` must have no line end."""
        data = line.encode() + b"\n"
        written = self._file.write(data) or 0
        if written < len(data) and self._file.write(data[written:]) != len(data) - written:
            # The second write raises the error itself in most cases, such as a full disk.
            raise OSError(f"short writes to {self._file.name}")

    def close(self) -> None:
        self._file.close()

    def __exit__(self, *error: object) -> None:
        self.close()


def _drop_torn_line(path: Path) -> None:
    if not path.exists() or path.stat().st_size == 0:
        return
    with path.open("rb+") as file:
        # Mapped, so that only the end of a large file is read.
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            size, end = len(content), content.rfind(b"\n") + 1
        if end != size:
            file.truncate(end)


def whole_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yields each line that a `LineWriter` wrote, with the line's number. Line numbers begin at 1. An incomplete last
    line is left out.

    Raises OSError if the file cannot be read.
    """
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if line.endswith(b"\n"):
                yield number, line


DISK_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG})
"""Values of `errno` for failures of the disk, such as a full disk, as opposed to faults of the program."""


def os_failure(error: OSError) -> Failure:
    """Converts an OSError to a Failure that names the file. A failure of the disk also has a hint."""
    where = f" {error.filename}" if error.filename else ""
    hint = "Make room there, or use a folder on another disk." if error.errno in DISK_ERRORS else ""
    return Failure(f"cannot read or write{where}: {error.strerror or error}", hint)


def existing_folder(path: Path) -> Path:
    """Returns the path if it is a folder, else the nearest existing folder above it, which is on the same disk."""
    return next(each for each in (path.absolute(), *path.absolute().parents) if each.is_dir())


def no_room(path: Path) -> str:
    """Returns a sentence if the disk of `path` has no space left for this user, else "".

    The sentence explains why a process ended with an empty log, because nothing can be logged on a full disk.
    """
    folder = existing_folder(path)
    disk = os.statvfs(folder)
    return f"no space left on the disk of {folder}" if disk.f_bavail == 0 else ""


@contextmanager
def output_file(path: Path) -> Iterator[TextIO]:
    """Opens a `whole_file` at a path that the user gave. The file's folder is made if it does not exist.

    Raises:
        UserError: the path is a folder, or is below a file.
        Failure: the file cannot be written.
    """
    if path.is_dir():
        raise UserError(f"{path} is a folder", "Name a file.")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise UserError(f"{path.parent} is not a folder", "Name a file elsewhere.") from error
    except OSError as error:
        raise Failure(f"cannot make {path.parent}: {error.strerror}", "Name a file elsewhere.") from error
    try:
        with whole_file(path) as file:
            yield file
    except OSError as error:
        raise Failure(
            f"cannot write {path}: {error.strerror or error}", "Make room, or name a place on another disk."
        ) from error


@contextmanager
def whole_file(path: Path, mode: int = 0o666) -> Iterator[TextIO]:
    """Opens a UTF-8 text file, which appears at `path` when the `with` block ends, or not at all if the block raises.

    The file's permissions are `mode` without those that the umask removes. If `path` is a link, the link is followed.
    If `path` is neither a file nor a folder, such as a pipe or `/dev/stdout`, it is written to directly. Raises OSError
    if the file cannot be written, or is a folder.
    """
    if path.exists() and not path.is_file():
        with path.open("w", encoding="utf-8") as stream:
            yield stream
        return

    def opener(name: str, flags: int) -> int:
        return os.open(name, flags, mode)

    with whole_path(path) as part, open(part, "w", encoding="utf-8", opener=opener) as file:
        yield file


@contextmanager
def whole_path(path: Path) -> Iterator[Path]:
    """Yields a temporary path for a file, which is synced and moved to `path` when the `with` block ends.

    If the block raises, the temporary file is removed. If `path` is a link, the link is followed. Several processes may
    write to the same `path`: the file of the process that ends last remains.
    """
    path = path.resolve()
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        yield part
        with part.open("rb") as file:
            os.fsync(file.fileno())
        part.replace(path)
    except OSError as error:
        # The error of a failed write has no file name.
        error.filename = error.filename or str(path)
        raise
    finally:
        part.unlink(missing_ok=True)


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """Yields an empty folder that moves to `path` when the `with` block ends, or is removed if the block raises.

    All processes use the same temporary name, so that the leftovers of a killed process are replaced. The caller makes
    sure that no other process writes to `path`. Raises OSError if `path` is a file, or a folder that is not empty.
    """
    part = path.with_name(f".{path.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    try:
        yield part
        part.rename(path)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
