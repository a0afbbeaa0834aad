"""Grading a file of outputs that were made elsewhere."""

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
"""Rows graded between two steps of the progress bar."""
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
    """Such as "line 3", or "row 3" in files whose rows are not lines."""
    id: dict[str, Any]
    """The number of the line or row if it has a fault, and then the `id` of the row if it has one."""
    gold: AnswerValue = None
    pred: AnswerValue = None
    finished: bool = True
    """Whether the model ended the output itself, with an answer."""
    fault: str = ""
    """Why the line cannot be graded."""

    @property
    def gradable(self) -> bool:
        """Whether it has no fault, and a gold answer."""
        return not self.fault and bool((as_text(self.gold) or "").strip())


def read_rows(path: Path, gold_key: str, pred_key: str, strict: bool) -> list[OfflineRow]:
    """The rows of a file: gold answers and outputs, each text, a number or null, or an evaluation's traces.

    The file is JSON Lines, a `.json` file with one list, CSV (`.csv`, `.tsv`) or parquet (`.parquet`).

    Args:
        strict: raise at the first row that cannot be graded, instead of keeping it with its fault.

    Raises:
        UserError: there is no such file, none of its rows can be graded, or, where `strict`, one cannot.
    """
    rows: list[OfflineRow] = []
    unit, read = _reader(path)

    def refused(number: int, fault: str, own_id: dict[str, Any] | None = None) -> None:
        if strict:
            raise UserError(f"{path}, {unit} {number}: {fault}", _ROW)
        rows.append(OfflineRow(f"{unit} {number}", {unit: number, **(own_id or {})}, fault=fault))

    for number, value in read(path, refused):
        is_trace = "turns" in value and pred_key not in value
        trace = _trace(value) if is_trace else None
        row = value if trace is None else {"id": f"{trace.problem_id}/{trace.sample}"}
        names = ("gold", "pred") if is_trace else (gold_key, pred_key)
        own_id = {name: row[name] for name in row if name == "id"}
        place = f"{unit} {number}"
        if trace is not None:
            rows.append(OfflineRow(place, own_id, trace.gold, *final_text(trace)))
        elif fault := _fault(row, names):
            refused(number, fault, own_id)
        else:
            gold, pred = (row[name] for name in names)
            ended = (row.get("finish") or "answer") == "answer"
            rows.append(OfflineRow(place, own_id, gold, pred, finished(as_text(pred) or "", ended)))
        if strict and not rows[-1].gradable:
            refused(number, "no gold answer")
    if not any(row.gradable for row in rows):
        first = f"{rows[0].place}: {rows[0].fault or 'no gold answer'}" if rows else "it has no rows"
        raise UserError(f"nothing in {path} can be graded; {first}", _ROW)
    return rows


_OnFault = Callable[[int, str], None]
_Read = Callable[[Path, _OnFault], Iterator[tuple[int, dict[str, Any]]]]


def _reader(path: Path) -> tuple[Unit, _Read]:
    """Returns what a file's rows are called, and what reads them."""
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
        listed = json.loads(path.read_text(encoding="utf-8-sig"), parse_float=str)
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} is not JSON: {error}", "It must be one list of objects.") from error
    for number, value in enumerate(listed, 1):
        if isinstance(value, dict):
            yield number, value
        else:
            on_fault(number, f"not a JSON object but {type(value).__name__}")


def _parquet_rows(path: Path, on_fault: _OnFault) -> Iterator[tuple[int, dict[str, Any]]]:
    from rstar2.data.parquet import iter_rows

    try:
        for number, row in enumerate(iter_rows(path), 1):
            # pandas writes a number that is missing as NaN.
            yield number, {name: None if value != value else value for name, value in row.items()}
    except UserError as error:
        raise UserError(error.message, _ROW) from error


def _trace(value: dict[str, Any]) -> Trace | None:
    """A row as the trace that it is; None if it is none after all, so that its faults are reported."""
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
    """One object for each row, in order: `id` if there is one, then `verdict`, `extracted` and `rule`.

    If `certified`, the certificate of each correct verdict is checked, and `verified` is true or says what is not
    confirmed.
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
                result["verified"] = _refusal(verdict) or True
            yield row.id | result


def _refusal(verdict: Verdict) -> str | None:
    # sympy takes half a second to load, and few runs check certificates.
    from rstar2.eval.grader.verify import verify

    return verify(verdict.certificate)


@contextmanager
def writer(path: Path | None, source: Path) -> Iterator[Callable[[dict[str, Any]], None]]:
    """A function that writes one object a line, to a file that appears whole at the end, or to standard output.

    Raises:
        UserError: the file is the `source` of the rows, or as of `output_file`.
        Failure: as of `output_file`.
    """
    if path is None:
        yield lambda row: _write(sys.stdout, row)
        return
    if path.is_file() and path.samefile(source):
        raise UserError(
            f"{path} is the file to grade, which the verdicts would replace", "Name another --output."
        )
    with output_file(path) as file:
        yield lambda row: _write(file, row)


def _write(file: TextIO, row: dict[str, Any]) -> None:
    file.write(json.dumps(row) + "\n")
