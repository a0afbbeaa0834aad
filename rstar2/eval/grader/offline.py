"""Grading a file of outputs that were made elsewhere."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

from rstar2.errors import Failure, UserError
from rstar2.eval.grader.pool import GraderPool
from rstar2.files import read_objects, whole_file

BATCH = 256
"""Rows graded between two steps of the progress bar."""
_ROW = 'Each line is a JSON object such as {"id": "1", "gold": "42", "pred": "so it is \\\\boxed{42}"}.'


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a JSON Lines file: `gold` and `pred`, each text or None, and perhaps `id`.

    Raises:
        UserError: there is no such file, or a line is not a row; names the line and the field.
    """
    rows: list[dict[str, Any]] = []
    for number, row in read_objects(path, _ROW):
        for field in ("gold", "pred"):
            if field not in row:
                raise UserError(f"{path}, line {number}: `{field}` is missing", _ROW)
            if not isinstance(row[field], str | None):
                kind = type(row[field]).__name__
                raise UserError(f"{path}, line {number}: `{field}` is {kind}, not text or null", _ROW)
        rows.append({name: row[name] for name in ("id", "gold", "pred") if name in row})
    return rows


def graded(rows: list[dict[str, Any]], pool: GraderPool) -> Iterator[dict[str, Any]]:
    """One object for each row, in order: `id` if there is one, then `verdict`, `extracted` and `rule`."""
    for start in range(0, len(rows), BATCH):
        batch = rows[start : start + BATCH]
        verdicts = pool.grade_many([(row["gold"], row["pred"]) for row in batch])
        for row, verdict in zip(batch, verdicts, strict=True):
            yield {name: row[name] for name in row if name == "id"} | asdict(verdict)


@contextmanager
def writer(path: Path | None) -> Iterator[Callable[[dict[str, Any]], None]]:
    """A function that writes one object a line, to a file that appears whole at the end, or to standard output.

    Raises:
        UserError: the folder of the file is not there.
        Failure: the file cannot be written.
    """
    if path is None:
        yield lambda row: _write(sys.stdout, row)
        return
    if not path.parent.is_dir():
        raise UserError(f"{path.parent} is not a folder", "Create it, or name another --output.")
    if path.is_dir():
        raise UserError(f"{path} is a folder", "Name a file for --output.")
    try:
        with whole_file(path) as file:
            yield lambda row: _write(file, row)
    except OSError as error:
        raise Failure(f"cannot write {path}: {error.strerror}", "Nothing was written there.") from error


def _write(file: TextIO, row: dict[str, Any]) -> None:
    file.write(json.dumps(row) + "\n")
