"""What SFT shows a model of a conversation: the system text, and turns in the form that its texts ask for.

A conversation without a system text of its own gets the format's only if its turns do what that asks for. Otherwise the
model would learn to ignore the system text, which RL shows it before every problem. Rows with `answer_form`, and those
that a model wrote to solve a problem, are written in the form that RL rewards, see `rstar2.data.answer_form`.

A turn's thought, in the tags of whatever model or in `reasoning_content`, becomes a thought of the format.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from rstar2.data.answer_form import THOUGHT, Message, apart, plain_turn, questions
from rstar2.loop.turns import tags
from rstar2.loop.turns.codec import has_calls
from rstar2.loop.turns.demands import Demands, FormatTexts, demands_of

ANSWER_FORM = "answer_form"
"""The column of a row that says whether it is taught in the form that RL rewards."""
_TOKENS = "tokens"
"""The column of rows that a model wrote to solve a problem (`rstar2.data.rows.TOKENS`)."""


@dataclass(frozen=True)
class Taught:
    """A conversation as a format's codec encodes it (`ChatCodec.training_sample`)."""

    messages: list[Message]
    tools: list[Message] | None
    """The tools that the template lists; None for those of the format, if the conversation has calls."""
    keeps_form: bool
    """Whether its turns do what the format's system text asks for, so that it stands before them."""


@dataclass(frozen=True)
class FormCounts:
    """How many turns keep the form that their texts ask for."""

    conversations: int = 0
    rewarded_endings: int = 0
    r"""Conversations that end as RL rewards it: with `<answer>` or `\boxed{}`, as far as the format asks for them."""
    turns: int = 0
    """Turns of the model that SFT learns from."""
    demanded_turns: int = 0
    """Turns of which the system text, or the user's message, asks for something."""
    compliant_turns: int = 0
    """Those of them that do it."""
    unlearnt_turns: int = 0
    """Turns that SFT does not learn from, since the format's later prompts leave out their thoughts."""
    lost_thoughts: int = 0
    """Turns with a thought that is left out, since the format has no place for one."""
    mixed: int = 0
    """Conversations of which only some turns do what the format's system text asks for, so that none is shown it."""

    def __add__(self, other: FormCounts) -> FormCounts:
        sums = [getattr(self, each.name) + getattr(other, each.name) for each in fields(self)]
        return FormCounts(*sums)


def tools_of(row: Mapping[str, Any]) -> list[Message] | None:
    """A row's tools, as a list or as JSON; None if it has none."""
    tools = row.get("tools")
    listed: list[Message] | None = json.loads(tools) if isinstance(tools, str) else tools
    return listed


def as_taught(row: Mapping[str, Any], texts: FormatTexts) -> Taught:
    """A row of `messages`, and perhaps `tools` and `answer_form`, as SFT teaches it."""
    messages = _with_allowed_calls(list(row["messages"]), texts.format.calls_per_turn)
    rewritten, solves = None, bool(row.get(_TOKENS))
    if row.get(ANSWER_FORM) or solves:
        rewritten = in_answer_form(messages, texts, solves)
    if rewritten is None:
        tag = _thought_tag(messages, texts)
        messages = [_with_formats_thought(message, texts, tag) for message in messages]
    else:
        messages = rewritten
    keeps_form = rewritten is not None or all(_following(messages, texts) or [False])
    opened, tools = _with_system_text(messages, tools_of(row), texts, keeps_form)
    return Taught(opened, tools, keeps_form)


def in_answer_form(
    messages: Sequence[Message], texts: FormatTexts, solves: bool = False
) -> list[Message] | None:
    """A conversation in the form that RL rewards; None if it cannot be written so, or the format asks for nothing.

    A question that is answered with a definite value, or ends with a call, is put into the format's user text. Of its
    turns, the text becomes the thought; the value is the answer. Another reply becomes the answer as it is.

    `solves`: a model wrote it to solve a problem, so that its box is the answer.
    """
    plain = [plain_turn(message) for message in messages]
    if not texts.rewarded or (parts := questions(plain, solves)) is None:
        return None
    has_place = texts.format.family is not None or texts.opens_thought or bool(texts.opening.thought)
    if not solves and not has_place and any(message.get(THOUGHT) for message in plain):
        return None
    for question in parts:
        is_problem = question.value is not None or not question.answered
        if is_problem:
            content = texts.format.user.replace("{problem}", plain[question.start]["content"])
            plain[question.start] = {**plain[question.start], "content": content}
        demands = texts.rewarded if is_problem else texts.opening
        for at in range(question.start + 1, question.end):
            if plain[at]["role"] == "assistant":
                plain[at] = _turn(plain[at], question.value, demands, texts)
    return plain


def _turn(message: Message, value: str | None, demands: Demands, texts: FormatTexts) -> Message:
    """A turn in the form that is asked for; `value` is the definite value that answers its question."""
    text = message.get("content") or ""
    boxed = f"\\boxed{{{value}}}"
    reasoning, answer = "", text
    if message.get("tool_calls"):
        reasoning, answer = text, ""
    elif (written := tags.ending_answer(text)) is not None:
        reasoning, answer = written[0].strip(), written[1]
    elif value is not None and not (boxed in text and (message.get(THOUGHT) or not demands.answer)):
        reasoning, answer = text, boxed
    if answer and demands.answer:
        answer = f"{tags.ANSWER}{answer}{tags.ANSWER_END}"
    if texts.format.family is None and (texts.opens_thought or demands.thought):
        thought = "\n\n".join(filter(None, [message.get(THOUGHT), reasoning]))
        start = texts.turn_start if texts.opens_thought else demands.thought
        return _with_thought({**message, "content": answer}, start, thought)
    return {**message, "content": "\n\n".join(filter(None, [reasoning, answer]))}


def _with_formats_thought(message: Message, texts: FormatTexts, tag: str) -> Message:
    """A turn whose thought is where the format has it: in a field, after the generation prompt, or in `tag`.

    If the format has no place for it, tags stay in the text, and a thought in a field stays there, which no template
    shows.
    """
    content = message.get("content") or ""
    start = texts.turn_start if texts.opens_thought else tag
    if message["role"] != "assistant" or (start and content.startswith(start) and not message.get(THOUGHT)):
        return message
    thought, said = apart(message)
    if thought is None:
        return message
    if texts.format.family is not None:
        return {**message, THOUGHT: thought, "content": said}
    return _with_thought({**message, "content": said}, start, thought) if start else message


def _with_thought(message: Message, start: str, thought: str) -> Message:
    """A turn that begins with its thought, after the tag that starts it."""
    content = tags.with_thought(start, thought, message["content"]).rstrip("\n")
    return {key: value for key, value in message.items() if key != THOUGHT} | {"content": content}


def _thought_tag(messages: Sequence[Message], texts: FormatTexts) -> str:
    """The tag of a thought that the conversation's texts ask for; empty if they ask for none."""
    own = [str(message["content"]) for message in messages if message["role"] in ("system", "user")]
    asked = demands_of("\n".join(own)).thought
    return asked or texts.opening.thought


def _with_allowed_calls(messages: list[Message], most: int | None) -> list[Message]:
    """A conversation whose turns have no more calls than a rollout runs of a turn: others become several turns.

    Each call is followed by its reply. Turns whose calls and replies do not correspond stay as they are, and of a turn
    that ends the conversation the calls that a rollout runs are left.
    """
    allowed: list[Message] = []
    at = 0
    while at < len(messages):
        message = messages[at]
        at += 1
        calls = list(message.get("tool_calls") or [])
        if most is None or len(calls) <= most:
            allowed.append(message)
            continue
        if at == len(messages):
            allowed.append({**message, "tool_calls": calls[:most]})
            continue
        replies = messages[at : at + len(calls)]
        if any(reply["role"] != "tool" for reply in replies) or len(replies) < len(calls):
            allowed.append(message)
            continue
        at += len(calls)
        by_id = {reply.get("tool_call_id"): reply for reply in replies}
        if by_id.keys() == {call.get("id") for call in calls} and len(by_id) == len(calls):
            replies = [by_id[call.get("id")] for call in calls]
        for first in range(0, len(calls), most):
            turn = {"role": "assistant", "content": None} if first else message
            allowed.append({**turn, "tool_calls": calls[first : first + most]})
            allowed += replies[first : first + most]
    return allowed


def _following(messages: Sequence[Message], texts: FormatTexts) -> list[bool]:
    """Returns for each turn whether it does what the format's opening asks for.

    Empty if no turn has tags of ours, or the opening asks for nothing.
    """
    turns = [message for message in messages if message["role"] == "assistant"]
    if not texts.opening or not any(_has_form(turn) for turn in turns):
        return []
    return [texts.meets(turn, texts.opening, may_be_empty=True) for turn in turns]


def _has_form(turn: Message) -> bool:
    """Whether a turn has a thought or an answer block of ours, and does not only mention a tag."""
    content = turn.get("content") or ""
    return tags.leading_thought(content) is not None or tags.ending_answer(content) is not None


def _with_system_text(
    messages: list[Message], tools: list[Message] | None, texts: FormatTexts, keeps_form: bool
) -> tuple[list[Message], list[Message] | None]:
    """The conversation with the system text that belongs before it, and the tools that are left to the template."""
    fmt = texts.format
    has_own = messages[0]["role"] == "system"
    if fmt.system is not None and "{tools}" in fmt.system:
        return _with_listed_tools(messages, tools, texts, keeps_form)
    if has_own or not texts.opening:
        return messages, tools
    if not keeps_form:
        return [{"role": "system", "content": ""}, *messages], tools
    if fmt.system is None:
        return messages, tools  # The template writes its own.
    return [{"role": "system", "content": fmt.system}, *messages], tools


def _with_listed_tools(
    messages: list[Message], tools: list[Message] | None, texts: FormatTexts, keeps_form: bool
) -> tuple[list[Message], list[Message] | None]:
    """The same for a format whose system text lists the tools: it stands before every conversation that has some."""
    fmt = texts.format
    assert fmt.system is not None
    has_own = messages[0]["role"] == "system"
    listed = list(fmt.tools) if tools is None and has_calls(messages) else tools or []
    if not (keeps_form if texts.opening else listed):
        if texts.opening and not has_own:
            return [{"role": "system", "content": ""}, *messages], tools
        return messages, tools
    system = fmt.with_tools(fmt.system, listed)
    if not has_own:
        return [{"role": "system", "content": system}, *messages], []
    own = messages[0]["content"]
    return [{"role": "system", "content": f"{own}\n\n{system.strip()}"}, *messages[1:]], []


def count_form(row: Mapping[str, Any], texts: FormatTexts) -> FormCounts:
    """How many turns of a row keep the form that they are asked for, as SFT teaches it."""
    taught = as_taught(row, texts)
    system = taught.messages[0]["content"] if taught.messages[0]["role"] == "system" else None
    opening = texts.opening if system is None else demands_of(system)
    learnt = demanded = compliant = unlearnt = 0
    for turn, demands, is_earlier in _turns(taught.messages, opening):
        if not texts.learns(is_earlier, bool(turn.get(THOUGHT))):
            unlearnt += 1
            continue
        learnt += 1
        if demands:
            demanded += 1
            compliant += texts.meets(turn, demands, may_be_empty=taught.keeps_form)
    loses_thoughts = texts.format.family is None or texts.drops_thoughts
    following = _following(taught.messages, texts)
    return FormCounts(
        conversations=1,
        rewarded_endings=int(_ends_in_form(taught.messages, texts)),
        turns=learnt,
        demanded_turns=demanded,
        compliant_turns=compliant,
        unlearnt_turns=unlearnt,
        lost_thoughts=sum(bool(turn.get(THOUGHT)) for turn in taught.messages) if loses_thoughts else 0,
        mixed=int(not taught.keeps_form and any(following)),
    )


def _ends_in_form(messages: Sequence[Message], texts: FormatTexts) -> bool:
    """Whether the last turn is one that RL rewards if its answer is right."""
    last = next(message for message in reversed(messages) if message["role"] == "assistant")
    rewarded = texts.rewarded
    if not (rewarded.answer or rewarded.box) or last.get("tool_calls"):
        return False
    return not tags.find_calls(tags.message_text(last)) and texts.meets(last, rewarded, may_be_empty=True)


def _turns(messages: Sequence[Message], opening: Demands) -> Iterator[tuple[Message, Demands, bool]]:
    """The model's turns, what the system text and the last question ask of each, and if another question follows."""
    last_question = max((at for at, message in enumerate(messages) if message["role"] == "user"), default=0)
    demands = opening
    for at, message in enumerate(messages):
        if message["role"] == "user":
            question = demands_of(message.get("content") or "")
            demands = opening | Demands(answer=question.answer, box=question.box)
        elif message["role"] == "assistant":
            yield message, demands, at < last_question
