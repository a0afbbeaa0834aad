"""Leaves out problems whose answers cannot be graded. If no output can be graded correct against an answer, no rollout
of the problem could earn a reward."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rstar2.data.parquet import HOW_TO_PREPARE, prepared_file, stage_rows
from rstar2.errors import UserError
from rstar2.eval.grader.grading import gold_fault
from rstar2.files import write_json

LEFT_OUT_FILE = "left_out.json"


@dataclass(frozen=True)
class UnreadableAnswer:
    """A row with a gold answer against which no output can be graded correct."""

    row: int
    """The row's number in the file, from 1."""
    answer: str
    why: str

    def __str__(self) -> str:
        return f"row {self.row}: {self.answer!r:.60} ({self.why})"


def readable_rows(path: Path, rollouts: int) -> tuple[list[dict[str, Any]], list[UnreadableAnswer]]:
    """Calls `stage_rows` to read a file, and separates the rows whose answers can be graded from the other rows.

    Returns:
        The rows whose answers can be graded, and the answers of all other rows.

    Raises:
        UserError: no answer can be graded, or `stage_rows` raises this error.
    """
    readable, unreadable = [], []
    for number, row in enumerate(stage_rows(path, rollouts), 1):
        answer = row["reward_model"]["ground_truth"]
        if why := gold_fault(answer):
            unreadable.append(UnreadableAnswer(number, answer, why))
        else:
            readable.append(row)
    if not readable:
        raise UserError(
            f"no output can be graded correct against any answer of {prepared_file(path)}: {unreadable[0]}",
            f"Write the answers as values or LaTeX, such as 42 or \\frac{{1}}{{2}}. {HOW_TO_PREPARE}",
        )
    return readable, unreadable


def write_left_out(folder: Path, unreadable: Mapping[Path, Sequence[UnreadableAnswer]]) -> None:
    """Writes `left_out.json` to a run's folder. For each data file, `left_out.json` lists the row, the answer and the
    reason of each problem that is left out."""
    write_json(
        folder / LEFT_OUT_FILE,
        {str(file): [asdict(each) for each in answers] for file, answers in unreadable.items()},
    )
