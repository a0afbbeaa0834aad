"""What is kept for training: verifiable integers, each problem once, nothing near a benchmark."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rstar2.data.filters import GRAM, Contamination, Shared, filter_problems, integer_answer, words_only
from rstar2.data.problem import Problem

MEASURED = Problem("m", "Every morning Aya goes for a nine-kilometre walk and stops at a coffee shop.", "204")


def _problem(text: str, answer: str = "1", name: str = "p") -> Problem:
    return Problem(name, text, answer)


@pytest.mark.parametrize(
    ("text", "integer"),
    [
        ("42", "42"),
        (" 042 ", "42"),
        ("$-7$", "-7"),
        ("+3", "3"),
        ("-0", "0"),
        ("000", "0"),
        ("1,234,567", "1234567"),
        ("123456789012", "123456789012"),
        ("1234567890123", None),
        ("12,34", None),
        ("3.0", None),
        ("1/2", None),
        ("\\frac{1}{2}", None),
        ("x + 1", None),
        ("", None),
        ("1 2", None),
        ("٣", None),
    ],
)
def test_only_plain_integers_of_a_bearable_size_are_answers(text: str, integer: str | None) -> None:
    assert integer_answer(text, 12) == integer


@given(value=st.integers(min_value=-(10**11), max_value=10**11))
def test_every_way_to_write_an_integer_is_the_same_answer(value: int) -> None:
    for written in (str(value), f"{value:,}", f"${value}$", f" {value}"):
        assert integer_answer(written, 12) == str(value)


def test_each_reason_to_drop_is_given_and_the_order_kept() -> None:
    rows = [
        _problem("What is one plus one?", "2", "a"),
        _problem("  ", "1"),
        _problem("How long is the diagonal?", "\\sqrt{2}"),
        _problem("How many atoms?", "1" + "0" * 80),
        _problem("Which number is meant?", "1"),
        _problem("Which number is meant?", "2"),
        _problem("what is ONE plus one", "02"),
        _problem(f"Long ago: {MEASURED.problem} How far?", "9"),
        _problem("What is two plus two?", "4", "b"),
    ]
    kept, dropped = filter_problems(rows, {"set": [MEASURED]}, max_digits=12)
    assert [problem.id for problem in kept] == ["a", "b"]
    reasons = ["empty", "not an integer", "huge", *["contradicted"] * 2, "double", "contaminated"]
    assert [each.reason for each in dropped] == reasons
    assert [each.problem for each in dropped] == rows[1:8]
    assert dropped[-1].shared == Shared("every morning aya goes for a nine kilometre", "set", "m")
    assert all(each.shared is None for each in dropped[:-1])


def test_the_kept_answer_is_the_plain_integer() -> None:
    [kept], _ = filter_problems([_problem("How many?", "$1,024$")], {}, 12)
    assert kept.answer == "1024"


WORDS = [f"w{number}" for number in range(40)]


@pytest.mark.parametrize(("shared", "touched"), [(GRAM, True), (GRAM - 1, False)])
def test_eight_shared_words_in_a_row_are_too_many_and_seven_are_not(shared: int, touched: bool) -> None:
    near = Contamination({"set": [_problem(" ".join(WORDS[:20]))]})
    text = " ".join([*WORDS[30:35], *WORDS[5 : 5 + shared], *WORDS[35:]])
    assert near.of(text) == (Shared(" ".join(WORDS[5 : 5 + shared]), "set", "p") if touched else None)


def test_case_and_punctuation_do_not_hide_a_copy() -> None:
    assert Contamination({"set": [MEASURED]}).of("EVERY morning, Aya goes (for a nine kilometre) walk!")


def test_a_short_measured_problem_is_matched_as_a_whole() -> None:
    near = Contamination({"set": [_problem("Find 2 + 2.")]})
    assert near.of("find 2+2")
    assert not near.of("Find 2 + 3.")
    assert not near.of("Someone asks you to find 2 + 2 and more")


@given(text=st.text(max_size=60))
def test_nothing_is_near_no_benchmark_and_every_text_is_near_itself(text: str) -> None:
    assert not Contamination({}).of(text)
    assert bool(Contamination({"set": [_problem(text)]}).of(text)) is bool(words_only(text))
