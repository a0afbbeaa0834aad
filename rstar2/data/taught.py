"""What SFT shows a model of a conversation: the system text, and turns in the form that its texts ask for.

A conversation without a system text of its own gets the format's only if its turns do what that asks for. Otherwise the
model would learn to ignore the system text, which RL shows it before every problem. Rows with `answer_form` are written
in the form that RL rewards, see `rstar2.data.answer_form`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from rstar2.data.answer_form import Message, Question, questions
from rstar2.loop.turns import tags
from rstar2.loop.turns.codec import has_calls
from rstar2.loop.turns.demands import Demands, Wording, demands_of, meets

ANSWER_FORM = "answer_form"
"""The column of a row that says whether it is taught in the form that RL rewards."""


@dataclass(frozen=True)
class Taught:
    """A conversation as a format's codec encodes it (`ChatCodec.training_sample`)."""

    messages: list[Message]
    tools: list[Message] | None
    """The tools that the template lists; None for those of the format, if the conversation has calls."""
    in_form: bool
    """Whether its turns were written in the form that RL rewards."""


@dataclass(frozen=True)
class FormCounts:
    """How many turns keep the form that their texts ask for."""

    conversations: int = 0
    rewarded_endings: int = 0
    r"""Conversations that end as RL rewards it: with `<answer>` or `\boxed{}`, as far as the format asks for them."""
    turns: int = 0
    """Turns of the model."""
    demanded_turns: int = 0
    """Turns of which the system text, or the user's message, asks for something."""
    compliant_turns: int = 0
    """Those of them that do it."""

    def __add__(self, other: FormCounts) -> FormCounts:
        sums = [getattr(self, each.name) + getattr(other, each.name) for each in fields(self)]
        return FormCounts(*sums)


def tools_of(row: Mapping[str, Any]) -> list[Message] | None:
    """A row's tools, as a list or as JSON; None if it has none."""
    tools = row.get("tools")
    listed: list[Message] | None = json.loads(tools) if isinstance(tools, str) else tools
    return listed


def as_taught(row: Mapping[str, Any], wording: Wording) -> Taught:
    """A row of `messages`, and perhaps `tools` and `answer_form`, as SFT teaches it."""
    messages, tools = list(row["messages"]), tools_of(row)
    written = in_answer_form(messages, wording) if row.get(ANSWER_FORM) else None
    messages = written or messages
    in_form = written is not None or _follows(messages, wording)
    return Taught(*_opened(messages, tools, wording, in_form), in_form)


def in_answer_form(messages: Sequence[Message], wording: Wording) -> list[Message] | None:
    """A conversation in the form that RL rewards; None if it cannot be written so, or the format asks for nothing.

    A question that is answered with a definite value, or ends with a call, is put into the format's user text. Of its
    turns, the text becomes the thought; the value is the answer. Another reply becomes the answer as it is.
    """
    if not wording.rewarded or (parts := questions(messages)) is None:
        return None
    written = list(messages)
    for question in parts:
        is_problem = question.value is not None or not question.answered
        if is_problem:
            content = wording.format.user.replace("{problem}", messages[question.start]["content"])
            written[question.start] = {**messages[question.start], "content": content}
        demands = wording.rewarded if is_problem else wording.opening
        for at in range(question.start + 1, question.end):
            if messages[at]["role"] == "assistant":
                written[at] = _turn(messages[at], question, demands, wording)
    return written


def _turn(message: Message, question: Question, demands: Demands, wording: Wording) -> Message:
    """A turn in the form that is asked for."""
    text = message.get("content") or ""
    if message.get("tool_calls"):
        thought, said = text, ""
    elif question.value is None:
        thought, said = "", f"{tags.ANSWER}{text}{tags.ANSWER_END}" if demands.answer else text
    else:
        boxed = f"\\boxed{{{question.value}}}"
        thought, said = text, f"{tags.ANSWER}{boxed}{tags.ANSWER_END}" if demands.answer else boxed
        if not demands.answer and boxed in text:
            said = ""
    if wording.opens_thought:
        content = tags.with_thought(wording.turn_start, thought, said).rstrip("\n")
    elif demands.thought:
        content = tags.with_thought(tags.REASON, thought, said).rstrip("\n")
    else:
        content = "\n\n".join(filter(None, [thought, said]))
    return {**message, "content": content}


def _follows(messages: Sequence[Message], wording: Wording) -> bool:
    """Whether turns that have tags of ours do what the format's opening asks for, so that it may stand before them."""
    turns = [message for message in messages if message["role"] == "assistant"]
    if not wording.opening or not any(tags.has_tags(turn.get("content") or "") for turn in turns):
        return False
    return all(meets(tags.message_text(turn), wording.opening, wording.opens_thought) for turn in turns)


def _opened(
    messages: list[Message], tools: list[Message] | None, wording: Wording, in_form: bool
) -> tuple[list[Message], list[Message] | None]:
    """The conversation with the system text that belongs before it, and the tools that are left to the template."""
    fmt = wording.format
    own = messages[0]["content"] if messages[0]["role"] == "system" else None
    lists_tools = fmt.system is not None and "{tools}" in fmt.system
    listed = list(fmt.tools) if tools is None and has_calls(messages) else tools or []
    if fmt.system is not None and (in_form if wording.opening else lists_tools and listed):
        # What lists the tools belongs before every conversation that has some.
        if own is None:
            system = fmt.with_tools(fmt.system, listed)
            return [{"role": "system", "content": system}, *messages], [] if lists_tools else tools
        if lists_tools:
            system = f"{own}\n\n{fmt.with_tools(fmt.system, listed).strip()}"
            return [{"role": "system", "content": system}, *messages[1:]], []
    elif own is None and wording.opening and not in_form:
        return [{"role": "system", "content": ""}, *messages], tools
    return messages, tools


def count_form(row: Mapping[str, Any], wording: Wording) -> FormCounts:
    """How many turns of a row keep the form that they are asked for, as SFT teaches it."""
    taught = as_taught(row, wording)
    system = taught.messages[0]["content"] if taught.messages[0]["role"] == "system" else None
    opening = wording.opening if system is None else demands_of(system)
    turns = demanded = compliant = 0
    for turn, demands in _turns(taught.messages, opening):
        turns += 1
        if demands:
            demanded += 1
            compliant += meets(tags.message_text(turn), demands, wording.opens_thought)
    return FormCounts(1, _ends_in_form(taught.messages, wording), turns, demanded, compliant)


def _ends_in_form(messages: Sequence[Message], wording: Wording) -> bool:
    """Whether the last turn is one that RL rewards if its answer is right."""
    last = next(message for message in reversed(messages) if message["role"] == "assistant")
    rewarded = wording.rewarded
    if not rewarded or last.get("tool_calls") or not demands_of(last.get("content") or ""):
        return False
    text = tags.message_text(last)
    return not tags.find_calls(text) and meets(text, rewarded, wording.opens_thought)


def _turns(messages: Sequence[Message], opening: Demands) -> Iterator[tuple[Message, Demands]]:
    """The model's turns with what the system text and the last question ask of them."""
    demands = opening
    for message in messages:
        if message["role"] == "user":
            question = demands_of(message.get("content") or "")
            demands = opening | Demands(answer=question.answer, box=question.box)
        elif message["role"] == "assistant":
            yield message, demands
