"""Tests that training leaves out, and names, problems for which no output can be graded correct."""

from __future__ import annotations

from pathlib import Path

import pytest

from rstar2.data.parquet import write_parquet
from rstar2.errors import UserError
from rstar2.train.answers import readable_rows


def test_rows_that_no_output_can_be_graded_correct_against_are_named_and_left_out(tmp_path: Path) -> None:
    file = tmp_path / "mine.parquet"
    answers = ["2", "}{", "\\frac{1}{2}", "???"]
    write_parquet(file, [{"problem": f"What is {n}?", "answer": answer} for n, answer in enumerate(answers)])
    rows, unreadable = readable_rows(file, rollouts=8)
    assert [row["reward_model"]["ground_truth"] for row in rows] == ["2", "\\frac{1}{2}"]
    assert [(each.row, each.answer) for each in unreadable] == [(2, "}{"), (4, "???")]
    write_parquet(file, [{"problem": "What?", "answer": "}{"}])
    with pytest.raises(
        UserError, match=r"graded correct against any answer of .*mine.parquet: row 1: '\}\{' \(it has no"
    ):
        readable_rows(file, rollouts=8)
