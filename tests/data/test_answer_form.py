"""Tests of finding the value that a reply states, so that it can be written in the form that RL rewards."""

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
OUTPUT = {"role": "tool", "content": '{"bmi": 22.86}'}
REPLY = {"role": "assistant", "content": "For 70 kg and 1.75 m the BMI is 22.86."}


@pytest.mark.parametrize(
    ("reply", "outputs", "values", "value"),
    [
        ("It is 42.", ['{"result": 42}'], [], "42"),
        ("It is 42.", ["so far\n42\n"], [], "42"),
        ("The total is **$1,250.50**.", ['{"total": 1250.5}'], [], "1250.50"),
        ("The price of Apple's stock is $150.75.", ['{"price": "$150.75"}'], [], "150.75"),
        ("The BMI is 22.86. This is healthy.", ['{"bmi":22.86,"status":"normal"}'], [], "22.86"),
        ("It is −3 degrees.", ['{"temperature": -3}'], ["42 times"], "-3"),
        ("20% of 150 is 30.", ['{"tip": 30.0}'], ["A 20% tip of 150?"], "30"),
        ("The area is 15 square units", ['{"area":15}'], ["sides 3,5"], "15"),
        ("The payment would be approximately $943.56.", ['{"monthly_payment": 943.56}'], [], "943.56"),
        ("So \\boxed{\\frac{1}{2}}.", [], [], "\\frac{1}{2}"),
        ("The answer is $\\boxed{x}$.", [], [], "x"),
        ("It is \\[\\boxed{\\{1, 2\\}}\\]", [], [], "\\{1, 2\\}"),
    ],
)
def test_a_value_is_boxed_or_stated_as_a_tool_replied_it(
    reply: str, outputs: list[str], values: list[str], value: str
) -> None:
    assert definite_value(reply, outputs, values) == value


@pytest.mark.parametrize(
    ("reply", "outputs", "values"),
    [
        # The value is not confirmed, one of several, or not a number.
        ("It is 42.", ['{"result": 41}'], []),
        ("It is 42.", ['{"result": 42.3}'], []),
        ("It is 42.", ['{"result": "about 42"}'], []),
        ("It is 42.", [], []),
        ("It is 42 or 43.", ["42, 43"], []),
        ("It is 42. In all it is 42.", ["42"], []),
        ("It is done.", ['{"ok": true}'], []),
        ("It is 1e400 or 42.", ["42"], []),
        ("It is 42.", ["[" * 5000 + "42" + "]" * 5000], []),
        # The question or a call contains the value in some notation.
        ("Your budget is 500.", ['{"budget": 500}'], ["Set my budget:500"]),
        ("The alarm is 30.", ['{"value": 30}'], ['{"a":30}']),
        ("The mean of 10 and 30 is 20.", ['{"mean": 20}'], ["[10,20,30]"]),
        # The number is not the value that the question asks for.
        ("Sorry, the service replied with error 500.", ['{"temperature": 7, "error_code": 500}'], []),
        ("The error code is 500.", ['{"value": 500}'], []),
        ("The result is 500.", ['{"status": 500}'], []),
        ("I could not get it. The limit is 30.", ['{"value": 30}'], []),
        ("No, it is less than 30.", ['{"limit": 30}'], []),
        ("It is not 25.", ["25"], []),
        ("There are 3 results.", ['{"results": ["a", "b", "c"], "n": 3}'], []),
        ("You have table 12, enjoy!", ['{"table": 12}'], []),
        # The answer has only a part of the value.
        ("About 3 million people live there.", ['{"population": "3 million"}'], []),
        ("It is 3 million.", ['{"population": 3}'], []),
        ("The drive takes two hours and 15 minutes.", ['{"duration": 15}'], []),
        ("The drive is two hours and equals 15 minutes.", ['{"duration": 15}'], []),
        ("The date is January 5.", ["5"], []),
        ("It is on January 5.", ["5"], []),
        ("The roots are ±4.", ["4"], []),
        ("It is minus 4.", ["4"], []),
        ("It is - 4.", ["4"], []),
        ("It is 5 degrees below zero.", ["5"], []),
        ("It is 5!", ["5"], []),
        ("It is 5!.", ["5"], []),
        ("It is 5x.", ["5"], []),
        ("It is 5².", ["5"], []),
        ("It is 4 or ½.", ["4"], []),
        ("The value is 10^6.", ["10"], []),
        ("It is 2π.", ["2"], []),
        ("The result is 1/3.", ["1"], []),
        ("The total is 12,50 €.", ["12"], []),
        ("It is 1 234 567.", ["567"], []),
        ("The value is ١٢.", ["12"], []),
        ("The time is 3 PM.", ["3"], []),
        ("It's 5 o'clock.", ["5"], []),
        ("1. Paris", ['{"id": 1}'], []),
        # The number is part of another expression, or names a thing.
        ("Your note ID is 42.", ['{"id": 42}'], []),
        ("Your note is 42.", ['{"noteId": 42}'], []),
        ("Your order number 42 was sent.", ['{"id": 42}'], []),
        ("Order 66 placed.", ["66"], []),
        ("See you on 2023-10-05, room 42.", ['{"room": 42}'], []),
        ("It starts at 10:30 and takes 42 minutes.", ['{"minutes": 42}'], []),
        ("Call 555-1234.", ["555-1234"], []),
        ("The 3rd of 42.", ["42"], []),
        # The boxes are empty, not the only ones, or cut off.
        ("So \\boxed{" + "x" * 200 + "}.", [], []),
        ("The box is empty: \\boxed{}", [], []),
        ("Write $\\boxed{x}$ to get a box. It needs amsmath.", [], ["Show LaTeX's box command."]),
        ("To draw it, write $\\boxed{x}$", [], []),
        ("`\\boxed{12}`", [], []),
        ("First \\boxed{3}, then \\boxed{4}", [], []),
        ("\\boxed{3} is wrong; it is 4.", ["4"], []),
        ("So $\\boxed{12", ["12"], []),
        ("So boxed{12}", [], []),
    ],
)
def test_a_number_in_doubt_is_no_value(reply: str, outputs: list[str], values: list[str]) -> None:
    assert definite_value(reply, outputs, values) is None


def test_numbers_of_the_question_and_of_the_calls_are_not_new() -> None:
    (question,) = questions([USER, CALLING, OUTPUT, REPLY]) or []
    assert (question.start, question.end, question.answered, question.value) == (0, 4, True, "22.86")


def test_each_question_has_its_own_answer_and_the_last_may_end_with_a_call() -> None:
    thanks = [{"role": "user", "content": "Thanks!"}, {"role": "assistant", "content": "Welcome."}]
    unanswered = questions([USER, CALLING, OUTPUT, REPLY, *thanks, USER, CALLING])
    assert unanswered is not None
    assert [(each.answered, each.value) for each in unanswered] == [
        (True, "22.86"),
        (True, None),
        (False, None),
    ]


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "system", "content": "Be brief."}, USER, REPLY],
        [USER, {"role": "assistant", "content": "Use the tag <answer> here."}],
        [USER, {"role": "assistant", "content": "4 <think>so</think> 2"}],
        [USER, REPLY, REPLY],
        [USER, REPLY, CALLING],
        [USER, USER, REPLY],
        [USER, CALLING, OUTPUT, USER, REPLY],
        [USER, {"role": "system", "content": "x"}, REPLY],
    ],
)
def test_what_cannot_be_written_in_the_form_is_left_as_it_is(messages: list[dict[str, Any]]) -> None:
    assert questions(messages) is None
