"""Tests that the grader gives every verdict in the table of equal answers in docs/grading.md."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rstar2 import grade

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/grading.md").read_text(encoding="utf-8")
VERDICTS = ("correct", "wrong", "unparsed")


def _cases() -> list[tuple[str, str, str]]:
    """Returns the table's (gold answer, answer, verdict) triples. A cell contains pairs "`answer` for `gold
    answer`"."""
    section = PAGE.partition("## What counts as equal")[2].partition("\n## ")[0]
    rows = [re.split(r"(?<!\\)\|", line)[2:5] for line in section.splitlines() if line.startswith("|")][2:]
    return [
        (gold, answer, verdict)
        for row in rows
        for verdict, cell in zip(VERDICTS, row, strict=True)
        for answer, gold in re.findall(r"`([^`]+)` for `([^`]+)`", cell)
    ]


@pytest.mark.parametrize(("gold", "answer", "verdict"), _cases())
def test_the_grader_gives_the_verdict_of_the_table(gold: str, answer: str, verdict: str) -> None:
    assert grade(gold, answer).verdict == verdict


def test_the_table_has_cases_of_each_verdict() -> None:
    assert {verdict for _, _, verdict in _cases()} == set(VERDICTS)
