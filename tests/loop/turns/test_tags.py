"""Tests of finding tool calls in the text of a turn."""

from __future__ import annotations

import pytest

from rstar2.loop.trace import Trace, Turn
from rstar2.loop.turns.tags import after_leading_thought, after_reasoning, find_calls, read_turn
from rstar2.train.group import Rollout

MANY = 400_000
"""A number of tags for which a search with quadratic time would exceed the test's time limit."""


@pytest.mark.parametrize("closed_only", [True, False])
@pytest.mark.parametrize("tag", ["<tool_call>", "<answer>", "<tool_call><answer>", "</think>"])
def test_tags_that_are_never_closed_are_looked_through_once(tag: str, closed_only: bool) -> None:
    assert find_calls(tag * MANY, closed_only) == []


def test_answer_blocks_that_are_never_closed_are_looked_through_once() -> None:
    turn = Turn(text="<answer>x</answer>" + "<answer>" * MANY, start=0, end=1)
    trace = Trace(
        problem_id="p",
        prompt_ids=[1],
        response_ids=[2],
        response_mask=[1],
        turns=[turn],
        finish="answer",
        reward=0.0,
    )
    assert Rollout.from_trace(trace).closed_blocks == 0


def test_closed_calls_are_found_up_to_the_last_end() -> None:
    text = "<tool_call>1</tool_call> and <tool_call>2</tool_call> and <tool_call>3"
    call_texts = [call.text for call in read_turn(text, closed_only=True).calls]
    assert call_texts == ["<tool_call>1</tool_call>", "<tool_call>2</tool_call>"]


@pytest.mark.parametrize(
    ("text", "rest"), [("a</think>b", "b"), ("a</reason>b</think>c", "c"), ("<think>a", "<think>a"), ("", "")]
)
def test_what_follows_the_reasoning(text: str, rest: str) -> None:
    assert after_reasoning(text) == rest


@pytest.mark.parametrize(
    ("text", "rest"),
    [
        ("<think>\nHm.\n</think>\n\nYes.", "Yes."),
        ("\n <think></think>Yes.", "Yes."),
        ("Hm.\n</think>\n\nYes.", "Yes."),
        ("<reason>Hm.</reason>Yes.", "Yes."),
        ("<think>A </reason> in it.</think>Yes.", "Yes."),
        ("<think>Hm.</think>Yes, with </think> in it.", "Yes, with </think> in it."),
        ("<think>Hm.</think>", ""),
        ("Yes.", "Yes."),
        ("Yes, <think>hm</think>.", "Yes, <think>hm</think>."),
        ("<think>Hm. Yes.", None),
        ("<thinking>Hm.</thinking>Yes.", "Yes."),
        ("<seed:think>Hm.</seed:think>\nYes.", "Yes."),
        ("Hm.</seed:think>Yes.", "Yes."),
        ("<thinking>Hm.</think> Yes.", None),
        (
            "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes.<|return|>",
            "Yes.",
        ),
        ("<|start|>assistant<|channel|>final<|message|>Yes.", "Yes."),
        ("<|channel|>analysis<|message|>Hm.", None),
        ("analysisHm, yes.assistantfinalYes.", "Yes."),
        ("analysis of the final text", "analysis of the final text"),
        ("", ""),
    ],
)
def test_what_follows_a_leading_thought(text: str, rest: str | None) -> None:
    assert after_leading_thought(text) == rest
