"""Problems whose gold answer the grader cannot read are left out of training, and named."""

from __future__ import annotations

from pathlib import Path

import pytest

from rstar2.data.parquet import write_parquet
from rstar2.errors import UserError
from rstar2.train.answers import readable_rows


def test_rows_whose_answer_the_grader_cannot_read_are_named_and_left_out(tmp_path: Path) -> None:
    file = tmp_path / "mine.parquet"
    answers = ["2", "}{", "\\frac{1}{2}", "???"]
    write_parquet(file, [{"problem": f"What is {n}?", "answer": answer} for n, answer in enumerate(answers)])
    rows, unreadable = readable_rows(file, rollouts=8)
    assert [row["reward_model"]["ground_truth"] for row in rows] == ["2", "\\frac{1}{2}"]
    assert [(each.row, each.answer) for each in unreadable] == [(2, "}{"), (4, "???")]
    write_parquet(file, [{"problem": "What?", "answer": "}{"}])
    with pytest.raises(
        UserError, match=r"no answer that the grader can read: row 1: '\}\{' \(it has no letters"
    ):
        readable_rows(file, rollouts=8)
