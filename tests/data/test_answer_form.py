"""Which conversations can be taught in the form that RL rewards, and which value answers a question."""

from __future__ import annotations

from typing import Any

import pytest

from rstar2.data.answer_form import definite_value, questions

USER = {"role": "user", "content": "What is the BMI for 70 kg and 1.75 m?"}
CALLING: dict[str, Any] = {
    "role": "assistant",
    "content": "I compute it.",
    "tool_calls": [{"function": {"name": "bmi", "arguments": '{"kg": 70, "m": 1.75}'}}],
}
OUTPUT = {"role": "tool", "content": '{"bmi": 22.857142857}'}
REPLY = {"role": "assistant", "content": "For 70 kg and 1.75 m the BMI is 22.86."}


@pytest.mark.parametrize(
    ("reply", "outputs", "stated", "value"),
    [
        ("It is 42.", ['{"result": 42}'], [], "42"),
        ("The total is **$1,250.50**.", ['{"total": 1250.5}'], [], "1250.50"),
        ("The BMI is 22.86.", ['{"bmi": 22.857142857}'], [], "22.86"),
        ("It is −3 degrees, so 42 times colder than −3.", ["-3 and 42"], ["42 times"], "-3"),
        ("20% of 150 is 30.", ['{"tip": 30.0}'], ["A 20% tip of 150?"], "30"),
        ("So \\boxed{\\frac{1}{2}}.", [], [], "\\frac{1}{2}"),
        # Not confirmed, several, no number at all.
        ("It is 42.", ['{"result": 41}'], [], None),
        ("It is 42.", [], [], None),
        ("It is 42 or 43.", ["42, 43"], [], None),
        ("It is done.", ['{"ok": true}'], [], None),
        ("It is 1e400 or 42.", ["42"], [], None),
        # Numbers that are part of something else, or name a thing.
        ("Your note ID is 42.", ['{"id": 42}'], [], None),
        ("Your order number 42 was sent.", ['{"id": 42}'], [], None),
        ("See you on 2023-10-05, room 42.", ['{"room": 42}'], [], None),
        ("It starts at 10:30 and takes 42 minutes.", ['{"minutes": 42}'], [], None),
        ("Call 555-1234.", ["555-1234"], [], None),
        ("The 3rd of 42.", ["42"], [], None),
        ("So \\boxed{" + "x" * 200 + "}.", [], [], None),
        ("The box is empty: \\boxed{}", [], [], None),
        ("It is 0." + "1" * 60 + ".", ["9" * 60 + ".1"], [], None),
    ],
)
def test_a_value_is_the_only_new_number_and_confirmed_by_a_tool(
    reply: str, outputs: list[str], stated: list[str], value: str | None
) -> None:
    assert definite_value(reply, outputs, stated) == value


def test_numbers_of_the_question_and_of_the_calls_are_not_new() -> None:
    (question,) = questions([USER, CALLING, OUTPUT, REPLY]) or []
    assert (question.start, question.end, question.answered, question.value) == (0, 4, True, "22.86")


def test_each_question_has_its_own_answer_and_the_last_may_end_with_a_call() -> None:
    thanks = [{"role": "user", "content": "Thanks!"}, {"role": "assistant", "content": "Welcome."}]
    found = questions([USER, CALLING, OUTPUT, REPLY, *thanks, USER, CALLING])
    assert found is not None
    assert [(each.answered, each.value) for each in found] == [
        (True, "22.86"),
        (True, None),
        (False, None),
    ]


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "system", "content": "Be brief."}, USER, REPLY],
        [USER, {"role": "assistant", "content": "<answer>42</answer>"}],
        [USER, {"role": "assistant", "content": "<think>so</think>42"}],
        [USER, REPLY, REPLY],
        [USER, REPLY, CALLING],
        [USER, USER, REPLY],
        [USER, CALLING, OUTPUT, USER, REPLY],
        [USER, {"role": "system", "content": "x"}, REPLY],
    ],
)
def test_what_cannot_be_written_in_the_form_is_left_as_it_is(messages: list[dict[str, Any]]) -> None:
    assert questions(messages) is None
