"""Reading rows that were made elsewhere."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rstar2.errors import UserError
from rstar2.eval.grader import grade
from rstar2.eval.grader.grading import AnswerValue
from rstar2.eval.offline import OfflineRow, read_rows

GOOD = json.dumps({"id": 1, "gold": "42", "pred": None, "more": 2})


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 2: not JSON"),
        ("[" * 100_000, "line 2: not JSON"),
        ("[1]", "line 2: not a JSON object but list"),
        ('{"gold": "1"}', "line 2: `pred` is missing"),
        ('{"pred": "1"}', "line 2: `gold` is missing"),
        ('{"gold": true, "pred": "1"}', "line 2: `gold` is bool, not text, a number or null"),
        ('{"gold": "1", "pred": ["1"]}', "line 2: `pred` is list, not text, a number or null"),
    ],
)
def test_a_malformed_line_is_named(tmp_path: Path, line: str, message: str) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text(f"{GOOD}\n{line}\n{GOOD}\n")
    with pytest.raises(UserError) as raised:
        read_rows(source, "gold", "pred", strict=True)
    assert message in str(raised.value)


def test_a_row_keeps_its_id_and_nothing_else(tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text(GOOD + "\n")
    assert read_rows(source, "gold", "pred", strict=True) == [OfflineRow(1, {"id": 1}, "42", None)]


@pytest.mark.parametrize(("gold", "pred"), [(3, "3"), (3, 3), ("1/2", 0.5), (0.1, "0.1"), (1e-7, "1e-7")])
def test_numbers_are_graded_as_they_are_printed(gold: AnswerValue, pred: AnswerValue) -> None:
    assert grade(gold, pred).correct
