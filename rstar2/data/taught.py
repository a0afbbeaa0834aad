"""Converts conversations for SFT: adds the format's system text, and puts thoughts and answers where the format expects
them.

A conversation without a system text gets the format's system text only if its turns have the parts that this text asks
for, such as a thought or an answer block. Otherwise, the model would learn to ignore the system text, which RL shows
before every problem. Two kinds of rows are converted to the answer form: rows with `answer_form`, and rows from a
model's own rollouts. The answer form is the form that RL rewards (see `rstar2.data.answer_form`).

The thought of a turn may be in the tags of any model or in `reasoning_content`. It is moved to the place that the
format uses for thoughts.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from rstar2.data.answer_form import THOUGHT, Message, plain_turn, questions, split_thought
from rstar2.loop.turns import tags
from rstar2.loop.turns.codec import has_calls
from rstar2.loop.turns.demands import Demands, FormatTexts, demands_of

ANSWER_FORM = "answer_form"
"""The column that says whether SFT teaches the row in the answer form."""
_TOKENS = "tokens"
"""The column of token ids, which only rows from a model's own rollouts have (`rstar2.data.rows.TOKENS`)."""


@dataclass(frozen=True)
class Taught:
    """A conversation that is ready for SFT, as input of `ChatCodec.training_sample`."""

    messages: list[Message]
    tools: list[Message] | None
    """The tools that the template lists. If None, the template lists the format's tools for a conversation with
    calls."""
    keeps_form: bool
    """Whether all turns have the parts that the format's system text asks for. If True, the format's system text
    precedes the turns."""


@dataclass(frozen=True)
class FormCounts:
    """Counts of conversations and turns. They show how many turns have the parts that their prompts ask for: a thought,
    an answer block or a box.

    The prompt of a turn is the system text and the last user's message before the turn.
    """

    conversations: int = 0
    rewarded_endings: int = 0
    r"""Conversations whose last turn has the form that RL rewards: with `<answer>` or `\boxed{}`, as the format
    demands."""
    turns: int = 0
    """Turns of the model from which SFT learns."""
    demanded_turns: int = 0
    """Turns whose prompt asks for a thought, an answer block or a box."""
    compliant_turns: int = 0
    """Turns that have all parts that their prompt asks for."""
    unlearnt_turns: int = 0
    """Turns that SFT skips, because the format leaves the thoughts of these turns out of later prompts."""
    lost_thoughts: int = 0
    """Turns whose thought is left out, because turns of the format cannot contain a thought."""
    mixed: int = 0
    """Conversations in which some turns, but not all, have the parts that the format's system text asks for. SFT
    teaches such a conversation without the format's system text."""

    def __add__(self, other: FormCounts) -> FormCounts:
        sums = [getattr(self, each.name) + getattr(other, each.name) for each in fields(self)]
        return FormCounts(*sums)


def tools_of(row: Mapping[str, Any]) -> list[Message] | None:
    """Returns the tools of a row, which are a list or JSON text in the row. Returns None if the row has no tools."""
    tools = row.get("tools")
    listed: list[Message] | None = json.loads(tools) if isinstance(tools, str) else tools
    return listed


def as_taught(row: Mapping[str, Any], texts: FormatTexts) -> Taught:
    """Convert a row with `messages`, and optionally `tools` and `answer_form`, for SFT."""
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
    """Returns a conversation in the answer form, which is the form that RL rewards.

    A question counts as a problem if it has a definite value or ends with a call. A problem is inserted into the
    format's user text. In the turns of a problem, the text becomes the thought, and the definite value becomes the
    answer. For all other questions, the unchanged reply becomes the answer.

    Set `solves` if a model wrote the conversation to solve a problem. If `solves` is set, the last box in the reply is
    the answer.

    Returns None if the conversation cannot be taught in the answer form. Also returns None if the format asks for none
    of these parts: a thought, an answer block or a box.
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
    """Returns a turn with the parts that `demands` asks for. `value` is the definite value that answers the turn's
    question."""
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
    """Returns a turn with its thought in the place that the format uses.

    The place is the field `reasoning_content`, the start of the text after the generation prompt, or the tag `tag`. If
    the format has no place for a thought, the turn stays unchanged: tags stay in the text, and the template ignores a
    thought in `reasoning_content`.
    """
    content = message.get("content") or ""
    start = texts.turn_start if texts.opens_thought else tag
    if message["role"] != "assistant" or (start and content.startswith(start) and not message.get(THOUGHT)):
        return message
    thought, text = split_thought(message)
    if thought is None:
        return message
    if texts.format.family is not None:
        return {**message, THOUGHT: thought, "content": text}
    return _with_thought({**message, "content": text}, start, thought) if start else message


def _with_thought(message: Message, start: str, thought: str) -> Message:
    """Returns a turn that begins with the thought `thought`. `start` is the tag that opens the thought."""
    content = tags.with_thought(start, thought, message["content"]).rstrip("\n")
    return {key: value for key, value in message.items() if key != THOUGHT} | {"content": content}


def _thought_tag(messages: Sequence[Message], texts: FormatTexts) -> str:
    """Returns the thought tag that the system text and the user's messages ask for, or else the tag that the format
    asks for.

    Returns an empty text if neither asks for a thought.
    """
    contents = [str(message["content"]) for message in messages if message["role"] in ("system", "user")]
    return demands_of("\n".join(contents)).thought or texts.opening.thought


def _with_allowed_calls(messages: list[Message], most: int | None) -> list[Message]:
    """Splits each turn that has more than `most` calls, because a rollout runs at most `most` calls per turn.

    Each of the new turns is followed by the replies to its own calls. A turn stays unchanged if its calls and
    replies do not correspond. A turn that is the last message keeps its first `most` calls.
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
    """Returns one value per turn: whether it has the parts that the format's text before the first question asks for.

    The list is empty unless this text asks for a part and at least one turn has rstar2's tags.
    """
    turns = [message for message in messages if message["role"] == "assistant"]
    if not texts.opening or not any(_has_form(turn) for turn in turns):
        return []
    return [texts.meets(turn, texts.opening, may_be_empty=True) for turn in turns]


def _has_form(turn: Message) -> bool:
    """Whether a turn has a thought or an answer block in rstar2's tags. A turn that merely mentions a tag has no
    thought and no answer block."""
    content = turn.get("content") or ""
    return tags.leading_thought(content) is not None or tags.ending_answer(content) is not None


def _with_system_text(
    messages: list[Message], tools: list[Message] | None, texts: FormatTexts, keeps_form: bool
) -> tuple[list[Message], list[Message] | None]:
    """Returns the conversation with its system text, and the tools that the template has to list."""
    fmt = texts.format
    has_own = messages[0]["role"] == "system"
    if fmt.system is not None and "{tools}" in fmt.system:
        return _with_listed_tools(messages, tools, texts, keeps_form)
    if has_own or not texts.opening:
        return messages, tools
    if not keeps_form:
        return [{"role": "system", "content": ""}, *messages], tools
    if fmt.system is None:
        return messages, tools  # The template writes its default system text.
    return [{"role": "system", "content": fmt.system}, *messages], tools


def _with_listed_tools(
    messages: list[Message], tools: list[Message] | None, texts: FormatTexts, keeps_form: bool
) -> tuple[list[Message], list[Message] | None]:
    """Does the same as `_with_system_text`, for a format whose system text lists the tools.

    The system text that lists the tools precedes every conversation with tools.
    """
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
    """Convert a row with `as_taught`, and count the turns that have the parts that their prompts ask for."""
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
    """Whether RL would reward the last turn if the turn's answer were right."""
    last = next(message for message in reversed(messages) if message["role"] == "assistant")
    rewarded = texts.rewarded
    if not (rewarded.answer or rewarded.box) or last.get("tool_calls"):
        return False
    return not tags.find_calls(tags.message_text(last)) and texts.meets(last, rewarded, may_be_empty=True)


def _turns(messages: Sequence[Message], opening: Demands) -> Iterator[tuple[Message, Demands, bool]]:
    """Yields each turn of the model, the parts that the turn's prompt asks for, and whether another question follows
    the turn."""
    last_question = max((at for at, message in enumerate(messages) if message["role"] == "user"), default=0)
    demands = opening
    for at, message in enumerate(messages):
        if message["role"] == "user":
            question = demands_of(message.get("content") or "")
            demands = opening | Demands(answer=question.answer, box=question.box)
        elif message["role"] == "assistant":
            yield message, demands, at < last_question
