"""Writes files that are whole or absent, and reads JSON, in lines too, that users or we wrote."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
    """The objects of a JSON Lines file (jsonlines.org), each with the number of its line; blank lines are skipped.

    With `decimals_as_text`, a number with a decimal point is given as text, with the digits it was written with. With
    `on_fault`, it is called with a bad line's number and fault, and the next line is read.

    Raises:
        UserError: it cannot be read, is not UTF-8, or a line is not one JSON object; `hint` says what to do.
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


def _lines(path: Path, hint: str) -> Iterator[str]:
    """The lines of a text file; a UserError if it cannot be read."""
    try:
        # Not splitlines(): JSON allows in its strings what that takes for the end of a line.
        with path.open(encoding="utf-8-sig", newline="\n") as file:
            yield from file
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}", hint) from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text: {error.reason} at byte {error.start}", hint) from error


def _refuse(text: str) -> None:
    raise ValueError(f"{text} is not a JSON value")


def read_json(path: Path) -> Any:
    """A JSON file's value, None where there is no such file; UserError where it cannot be read."""
    if not path.exists():
        return None
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read {path}: {error}", "Remove it and run the command again.") from error


def write_json(path: Path, value: object) -> None:
    """Write JSON so that the file is either whole or absent."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def write_text(path: Path, text: str, mode: int = 0o666) -> None:
    """Write text so that the file is either whole or absent, with permissions `mode`, less the umask."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path, mode) as file:
        file.write(text)


def private_file(path: Path) -> Path:
    """A file to append to, which this user alone can read; made where it is not there, with its folder."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.close(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600))
    path.chmod(0o600)
    return path


@contextmanager
def output_file(path: Path) -> Iterator[TextIO]:
    """`whole_file` for what a user names with --output; its folder is made where it is not there.

    Raises:
        UserError: it is a folder, or lies below a file.
        Failure: it cannot be written.
    """
    if path.is_dir():
        raise UserError(f"{path} is a folder", "Name a file for --output.")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise UserError(f"{path.parent} is not a folder", "Name another --output.") from error
    except OSError as error:
        raise Failure(f"cannot make {path.parent}: {error.strerror}", "Name another --output.") from error
    try:
        with whole_file(path) as file:
            yield file
    except OSError as error:
        raise Failure(
            f"cannot write {path}: {error.strerror or error}", "Make room, or name another --output."
        ) from error


@contextmanager
def whole_file(path: Path, mode: int = 0o666) -> Iterator[TextIO]:
    """A file for UTF-8 text that takes its place at the end of the block, with `mode` less the umask, or not at all.

    A link is followed. What is no file and no folder, such as a pipe or `/dev/stdout`, is written to as it goes. An
    OSError where it cannot be written, or is a folder.
    """
    if path.exists() and not path.is_file():
        with path.open("w", encoding="utf-8") as there:
            yield there
        return
    place = path.resolve()
    part = place.with_name(f".{place.name}.{os.getpid()}.part")
    try:
        with open(part, "w", encoding="utf-8", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        part.replace(place)
    finally:
        part.unlink(missing_ok=True)
