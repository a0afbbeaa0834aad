"""The report of a program that reached its time limit."""

from __future__ import annotations

import pytest

from rstar2.judge.schema import Outcome, RunResult


@pytest.mark.parametrize(
    ("outcome", "cpu_s", "meanwhile"),
    [
        ("timeout", 9.9, "computing"),
        ("timeout", 31.0, "computing"),
        ("timeout", 0.02, "waiting"),
        ("ok", 9.9, None),
    ],
)
def test_a_time_out_says_whether_the_program_computed(
    outcome: Outcome, cpu_s: float, meanwhile: str | None
) -> None:
    assert RunResult(id="a", outcome=outcome, cpu_s=cpu_s, wall_s=10.0).ended_while == meanwhile
