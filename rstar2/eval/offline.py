"""Grades a file of outputs that were generated elsewhere."""

from __future__ import annotations

import json
import sys
from codecs import BOM_UTF8
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TextIO, get_args

from pydantic import ValidationError

from rstar2.errors import UserError, first_few
from rstar2.eval.final_answer import final_text
from rstar2.eval.grader.grading import AnswerValue, Verdict, as_text
from rstar2.eval.grader.pool import GraderPool
from rstar2.eval.grader.reading_rules import ReadingRule, finished, part_to_grade
from rstar2.files import output_file, read_csv, read_objects
from rstar2.loop.trace import Finish, Trace

BATCH = 256
"""Number of rows that are graded between two updates of the progress bar."""
_ROW = (
    'Each line is a JSON object such as {"id": "1", "gold": "42", "pred": "so it is \\\\boxed{42}"}; '
    "--gold-key and --pred-key name other keys. The same rows may be a list in a .json file, or columns in .csv, .tsv "
    "or .parquet."
)
STANDARD_INPUT = Path("/dev/stdin")


Unit = Literal["line", "row"]


@dataclass(frozen=True)
class OfflineRow:
    """One row of a file of outputs."""

    place: str
    """Place in the file, such as "line 3", or "row 3" if rows are not lines."""
    id: dict[str, Any]
    """Keys that identify the row in the output: the row's `id`, if any. A row with a fault also has its number in the
    file."""
    gold: AnswerValue = None
    pred: AnswerValue = None
    finished: bool = True
    """Whether the model ended the output itself, with an answer."""
    fault: str = ""
    """Why the row cannot be graded. Empty if the row can be graded."""

    @property
    def gradable(self) -> bool:
        """Whether the row has a gold answer and no fault."""
        return not self.fault and bool((as_text(self.gold) or "").strip())


def read_rows(path: Path, gold_key: str, pred_key: str, strict: bool) -> list[OfflineRow]:
    """Read the rows of a file: pairs of a gold answer and an output, or traces of an evaluation.

    Gold answers and outputs are text, numbers or null. The file is JSON Lines, a `.json` file with one list, CSV
    (`.csv`, `.tsv`) or parquet (`.parquet`).

    Args:
        path: the file.
        gold_key: key of the gold answer in a row.
        pred_key: key of the output in a row.
        strict: whether to raise UserError at the first row that cannot be graded. If False, a row that cannot be graded
            is returned with its `fault` set.

    Raises:
        UserError: the file cannot be read, or none of its rows can be graded. If `strict`, UserError is also raised if
            any single row cannot be graded.
    """
    rows: list[OfflineRow] = []
    unit, read = _reader(path)

    def add_fault(number: int, fault: str, own_id: dict[str, Any] | None = None) -> None:
        if strict:
            raise UserError(f"{path}, {unit} {number}: {fault}", _ROW)
        rows.append(OfflineRow(f"{unit} {number}", {unit: number, **(own_id or {})}, fault=fault))

    for number, value in read(path, add_fault):
        is_trace = "turns" in value and pred_key not in value
        trace = _trace(value) if is_trace else None
        row = value if trace is None else {"id": f"{trace.problem_id}/{trace.sample}"}
        names = ("gold", "pred") if is_trace else (gold_key, pred_key)
        own_id = {name: row[name] for name in row if name == "id"}
        place = f"{unit} {number}"
        if trace is not None:
            rows.append(OfflineRow(place, own_id, trace.gold, *final_text(trace)))
        elif fault := _fault(row, names):
            add_fault(number, fault, own_id)
        else:
            gold, pred = (row[name] for name in names)
            ended = (row.get("finish") or "answer") == "answer"
            rows.append(OfflineRow(place, own_id, gold, pred, finished(as_text(pred) or "", ended)))
        if strict and not rows[-1].gradable:
            add_fault(number, "no gold answer")
    if not any(row.gradable for row in rows):
        first = f"{rows[0].place}: {rows[0].fault or 'no gold answer'}" if rows else "it has no rows"
        raise UserError(f"nothing in {path} can be graded: {first}", _ROW)
    return rows


_OnFault = Callable[[int, str], None]
_Read = Callable[[Path, _OnFault], Iterator[tuple[int, dict[str, Any]]]]


def _reader(path: Path) -> tuple[Unit, _Read]:
    """Returns the word for a row in messages ("line" or "row"), and the function that reads the rows."""
    match path.suffix.lower():
        case ".parquet":
            return "row", _parquet_rows
        case ".csv" | ".tsv":
            return "row", lambda path, on_fault: read_csv(path, _ROW)
        case ".json" if _is_list(path):
            return "row", _listed_rows
        case _:
            return "line", lambda path, on_fault: read_objects(
                path, _ROW, decimals_as_text=True, on_fault=on_fault
            )


def _is_list(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(4096).removeprefix(BOM_UTF8).lstrip()[:1] == b"["
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}", _ROW) from error


def _listed_rows(path: Path, on_fault: _OnFault) -> Iterator[tuple[int, dict[str, Any]]]:
    try:
        values = json.loads(path.read_text(encoding="utf-8-sig"), parse_float=str)
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} is not JSON: {error}", "It must be one list of objects.") from error
    for number, value in enumerate(values, 1):
        if isinstance(value, dict):
            yield number, value
        else:
            on_fault(number, f"not a JSON object but {type(value).__name__}")


def _parquet_rows(path: Path, on_fault: _OnFault) -> Iterator[tuple[int, dict[str, Any]]]:
    from rstar2.data.parquet import iter_rows

    try:
        for number, row in enumerate(iter_rows(path), 1):
            # pandas writes a missing number as NaN.
            yield number, {name: None if value != value else value for name, value in row.items()}
    except UserError as error:
        raise UserError(error.message, _ROW) from error


def _trace(value: dict[str, Any]) -> Trace | None:
    """Parse a row as a trace. Returns None if the row is not a valid trace, so that the caller reports what is wrong
    with the row."""
    try:
        return Trace.model_validate(value)
    except ValidationError:
        return None


def _fault(row: dict[str, Any], names: tuple[str, str]) -> str:
    for name in names:
        if name not in row:
            return f"`{name}` is missing; the row has {first_few(list(row)) or 'no keys'}"
        if isinstance(row[name], bool) or not isinstance(row[name], AnswerValue):
            return f"`{name}` is {type(row[name]).__name__}, not text, a number or null"
    if (row.get("finish") or "answer") not in get_args(Finish):
        return f"`finish` is {row['finish']!r}, not one of {', '.join(get_args(Finish))}"
    return ""


def graded(
    rows: list[OfflineRow], pool: GraderPool, reading: ReadingRule, certified: bool = False
) -> Iterator[dict[str, Any]]:
    """Grade rows. Yields one object per row, in order: `id` if the row has one, `verdict`, `extracted` and `rule`.

    If `certified`, the certificate of each correct verdict is checked, and the object of the verdict has the key
    `verified`: true, or a text that says what could not be confirmed.
    """

    def pair(row: OfflineRow) -> tuple[AnswerValue, AnswerValue]:
        return row.gold, part_to_grade(as_text(row.pred) or "", reading, row.finished)

    for start in range(0, len(rows), BATCH):
        batch = rows[start : start + BATCH]
        verdicts = iter(pool.grade_many([pair(row) for row in batch if not row.fault]))
        for row in batch:
            verdict = Verdict("invalid", None, f"bad row: {row.fault}") if row.fault else next(verdicts)
            result: dict[str, Any] = {
                "verdict": verdict.verdict,
                "extracted": verdict.extracted,
                "rule": verdict.rule,
            }
            if certified and verdict.correct:
                result["verified"] = _unconfirmed(verdict) or True
            yield row.id | result


def _unconfirmed(verdict: Verdict) -> str | None:
    # Imported here, because sympy takes half a second to load and few runs check certificates.
    from rstar2.eval.grader.verify import verify

    return verify(verdict.certificate)


@contextmanager
def writer(path: Path | None, source: Path) -> Iterator[Callable[[dict[str, Any]], None]]:
    """Open an output file for JSON Lines. Yields a function that writes one object.

    Args:
        path: the file to write, which appears only when it is complete. If None, the objects are written to standard
            output.
        source: the file from which the rows were read.

    Raises:
        UserError: `path` and `source` are the same file, or `output_file` raises this error.
        Failure: `output_file` raises this error.
    """
    if path is None:
        yield lambda row: _write(sys.stdout, row)
        return
    if path.is_file() and path.samefile(source):
        raise UserError(
            f"--output {path} is the file to grade, and the verdicts would replace it", "Name another file."
        )
    with output_file(path) as file:
        yield lambda row: _write(file, row)


def _write(file: TextIO, row: dict[str, Any]) -> None:
    file.write(json.dumps(row) + "\n")
