"""Leaves out the problems whose gold answer the grader cannot read: their rollouts could never earn a reward."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rstar2.data.parquet import HOW_TO_PREPARE, prepared_file, stage_rows
from rstar2.errors import UserError
from rstar2.eval.grader.grade import gold_fault


@dataclass(frozen=True)
class UnreadableAnswer:
    """A row whose gold answer no output can be graded correct against."""

    row: int
    """Its place in the file, from 1."""
    answer: str
    why: str

    def __str__(self) -> str:
        return f"row {self.row}: {self.answer!r:.60} ({self.why})"


def readable_rows(path: Path, rollouts: int) -> tuple[list[dict[str, Any]], list[UnreadableAnswer]]:
    """The rows of `stage_rows` that can be trained on or measured, and the others, whose reward could only be 0.

    A UserError as of `stage_rows`, or if all rows are unreadable.
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
            f"{prepared_file(path)} has no answer that the grader can read: {unreadable[0]}",
            f"Write the answers as values or LaTeX, such as 42 or \\frac{{1}}{{2}}. {HOW_TO_PREPARE}",
        )
    return readable, unreadable
