"""A gold answer that cannot be graded is detected before the problem is sampled."""

from __future__ import annotations

import pytest
from support.eval.grader_cases import KINDS

from rstar2.eval.grader import grade
from rstar2.eval.grader.grading import gold_fault

READABLE = [
    "42", "-7", "\\frac{1}{2}", "0.5", "(1, 2)", "x^2 + 1", "[0, 1)", "\\text{(A)}", "Monday", "∞", "\\boxed{7}",
    "\\int_0^1 x\\,dx", "\\{1, 2, 3\\}", "10 \\text{ cm}", "The answer is 5.", 12, 2.5,
]  # fmt: skip
UNREADABLE = [
    "",
    "  ",
    "$$",
    "???",
    "😀",
    "}{",
    "\\boxed{",
    "\\boxed{}",
    "\\frac{1}{2",
    "185\\",
    None,
    "7" * 7000,
]


@pytest.mark.parametrize("gold", READABLE)
def test_an_answer_is_readable_if_its_own_text_is_graded_correct(gold: str | int | float) -> None:
    assert gold_fault(gold) is None
    assert grade(gold, f"<answer>\\boxed{{{gold}}}</answer>").correct


@pytest.mark.parametrize("gold", UNREADABLE)
def test_an_answer_that_nothing_equals_has_a_reason(gold: str | None) -> None:
    assert gold_fault(gold)


@pytest.mark.parametrize(
    ("gold", "reason"),
    [
        ("}{", "it has no letters, digits or mathematical signs"),
        (
            "5</answer>",
            "the part that counts as the answer, '>', has no letters, digits or mathematical signs",
        ),
    ],
)
def test_the_reason_names_the_text_that_was_read(gold: str, reason: str) -> None:
    assert gold_fault(gold) == reason


@pytest.mark.parametrize("kind", KINDS)
def test_the_answers_of_the_graders_cases_are_readable(kind: str) -> None:
    assert [gold for gold, _, _ in KINDS[kind] if gold_fault(gold)] == []
