"""Tests that a user's own conversations are read with any form of thoughts and calls."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rstar2.data.own import own_source
from rstar2.data.rows import Refused

F = {"name": "f", "parameters": {"type": "object", "properties": {"x": {"type": "integer"}}}}
QUESTION = {"role": "user", "content": "?"}
CALL = '<tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call>'
REPLY = {"role": "tool", "content": "1"}


def messages_after_question(folder: Path, *messages: dict[str, Any]) -> list[dict[str, Any]]:
    row = {"messages": [QUESTION, *messages], "tools": [F]}
    file = folder / "own.jsonl"
    file.write_text(json.dumps(row) + "\n")
    all_messages: list[dict[str, Any]] = own_source(file).read(row)["messages"]
    return all_messages[1:]


def test_calls_in_tags_become_calls_that_their_replies_answer(tmp_path: Path) -> None:
    text = f"<reason>I ask.</reason>\n{CALL}\n{CALL}"
    turn, *replies, last = messages_after_question(
        tmp_path, {"role": "assistant", "content": text}, REPLY, REPLY, {"role": "assistant", "content": "1"}
    )
    assert turn["content"] == "<reason>I ask.</reason>"
    assert [call["function"]["arguments"] for call in turn["tool_calls"]] == ['{"x": 1}'] * 2
    assert [reply["tool_call_id"] for reply in replies] == ["call_1", "call_2"]
    assert last["content"] == "1"


def test_calls_within_a_text_stay_text_and_the_reason_names_tags(tmp_path: Path) -> None:
    turn = {"role": "assistant", "content": f"Write {CALL} to call."}
    assert messages_after_question(tmp_path, turn) == [turn]
    with pytest.raises(Refused) as excinfo:
        messages_after_question(tmp_path, turn, REPLY, turn)
    assert "in tags at the end of a message" in excinfo.value.detail


def test_a_thought_in_a_field_of_its_own_is_not_lost(tmp_path: Path) -> None:
    (turn,) = messages_after_question(
        tmp_path, {"role": "assistant", "content": "1", "reasoning_content": "One."}
    )
    assert turn == {"role": "assistant", "content": "<think>\nOne.\n</think>\n\n1"}
    calls = [{"function": {"name": "f", "arguments": {"x": 1}}}]
    (turn,) = messages_after_question(
        tmp_path, {"role": "assistant", "reasoning_content": "One.", "tool_calls": calls}
    )
    assert turn["content"] == "<think>\nOne.\n</think>"
    assert len(turn["tool_calls"]) == 1
