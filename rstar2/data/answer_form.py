r"""Finds conversations that can be taught in the form that RL rewards, and the definite value that answers a question.

RL pays for a `\boxed{}` inside `<answer>`. Most replies of SFT's sources have no such value. A wrong value in a box
does more harm than a right one does good, so a reply whose value is in any doubt is taught without a box.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from rstar2.eval.grader.boxes import last_box
from rstar2.loop.turns import tags

Message = dict[str, Any]
THOUGHT = "reasoning_content"
"""The key of a turn's thought, if it is not in the turn's text."""

_NUMBER = r"(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(?:\.[0-9]+)?"
_ANY_NUMBER = re.compile(rf"[-−]?{_NUMBER}")
_CURRENCY = r"[$€£¥₹]"
_UNIT = (
    r"(?:%|percent|°\s?[CFK]?|degrees?(?: Celsius| Fahrenheit)?|radians?"
    r"|dollars?|euros?|pounds?|cents?|yen|rupees?|USD|EUR|GBP|JPY|INR|CAD|AUD"
    r"|mm|cm|m|km|inch(?:es)?|feet|foot|yards?|miles?"
    r"|(?:square |cubic )?(?:units?|feet|(?:centi|kilo|milli)?met(?:er|re)s?)"
    r"|mg|g|kg|(?:milli|kilo)?grams?|ounces?|tons?|lbs?|ml|(?:milli)?lit(?:er|re)s?|gallons?"
    r"|seconds?|minutes?|hours?|days?|weeks?|months?|years?(?: old)?"
    r"|km/h|mph|m/s|(?:kilometers|miles) per hour|calories|kcal|joules?|watts?)"
)
"""What may follow a number that is the whole value."""
_STATED = re.compile(
    r"(?:\b(?:is|are|(?:will|would) be|equals?|comes to)|'s|=)\s+(?:equal to\s+|approximately\s+)?"
    rf"\**({_CURRENCY}?\s?[-−]?{_CURRENCY}?)({_NUMBER})(?:\s?{_UNIT})?(?=\**(?:\.\**(?:\s|$)|\s*$))"
)
"""A sentence that ends by stating its value, such as `The total is $12.50.` or `It is 21 degrees Celsius.`"""
_VALUE = re.compile(rf"\s*{_CURRENCY}?\s?([-−]?{_NUMBER})\s?{_UNIT}?\s*")
"""A text of a tool that is one number, perhaps with its unit."""
_NUMBER_WORDS = re.compile(
    r"\b(?:zero|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|\w+teen|twenty|thirty|forty|fifty|sixty"
    r"|seventy|eighty|ninety|hundreds?|thousands?|(?:m|b|tr)illions?|lakhs?|crores?|dozens?|half|halves|thirds?"
    r"|quarters?|twice|double)\b",
    re.IGNORECASE,
)
_NO_ANSWER = re.compile(
    r"\b(?:sorry|apologi[sz]e|unfortunately|errors?|fail(?:ed|s|ure)?|unable|cannot|couldn|can't|invalid|not|no|never"
    r"|n't|less|more|fewer|least|most|than|below|above|under|over|minus|negative|range[sd]?|up to|or|if|maybe"
    r"|might|may|could|should|assum\w+|estimat\w+|limit|minimum|maximum)\b|n't\b",
    re.IGNORECASE,
)
"""Words with which a sentence states no value, or not only one."""
_NO_ANSWER_AT_ALL = re.compile(
    r"\b(?:sorry|apologi[sz]e|unfortunately|errors?|fail(?:ed|s|ure)?|unable|cannot|invalid)\b|n't\b",
    re.IGNORECASE,
)
"""Words of a reply that does not answer."""
_NAMES = re.compile(
    r"(?:^|[^a-z])(?:ids?|codes?|status|errors?|isbn|zip|pin|passwords?|phone|serial|account|flight|invoice|booking"
    r"|reservation|confirmation|tracking|orders?|tickets?|tables?|rooms?|seats?|gates?|pages?|rows?|steps?|versions?"
    r"|ports?|ranks?|episodes?|chapters?|number|limits?|counts?|years?|dates?|days? of|months?|times?|hour"
    r"|minute|alarms?|reminders?|latitude|longitude)(?:[^a-z]|$)",
    re.IGNORECASE,
)
"""Words for a number that names a thing, counts results or is part of a date, and is no answer."""
_IN_CAMEL_CASE = re.compile(r"(?<=[a-z])(?=[A-Z])")
_BOX = re.compile(r"\\boxed\s*\{")
_BEHIND_BOX = re.compile(r"[\s.!$*]*|\s*\\[\])][\s.]*")
_BEFORE_BOX = re.compile(r"(?:\b(?:is|are|equals?|answer)|=|:)[\s:$*(\[\\]*$")
_ABOUT_LATEX = re.compile(r"latex|amsmath|amssymb|\btex\b|markdown|`", re.IGNORECASE)
_MOST_BOXED = 100
"""Characters of a value that a reply boxes; a longer one is a derivation."""


@dataclass(frozen=True)
class Question:
    """A user's message and the turns that follow it, up to the next one."""

    start: int
    """Where the user's message is in the conversation."""
    end: int
    """Behind the last message."""
    answered: bool
    """Whether it ends with a reply. If not, it ends with a call, which can only be the conversation's last turn."""
    value: str | None
    """The definite value that answers it; None if there is none."""


def apart(message: Message) -> tuple[str | None, str]:
    """A turn's thought, None if it has none, and what it says besides. Its calls in tags stay in that text."""
    said = message.get("content") or ""
    thought = message.get(THOUGHT) or None
    if (in_tags := tags.leading_thought(said)) is not None:
        thought, said = thought or in_tags[0], in_tags[1]
    return thought, said


def plain_turn(message: Message) -> Message:
    """A turn with its thought in `reasoning_content` and its calls in `tool_calls`; another message as it is."""
    if message["role"] != "assistant":
        return message
    thought, said = apart(message)
    plain = {**message, "content": said}
    if not message.get("tool_calls") and (ending := tags.ending_calls(said)) is not None:
        calls = [tags.openai_call(call, number) for number, call in enumerate(ending[1])]
        plain |= {"content": ending[0], "tool_calls": calls}
    return plain if thought is None else {**plain, THOUGHT: thought}


def questions(messages: Sequence[Message], solves: bool = False) -> list[Question] | None:
    """The questions of a conversation that can be taught in the form that RL rewards; None if it cannot be.

    It cannot be if it has a system text of its own, tags of ours within its texts, or turns that no question opens.

    `solves`: a model wrote it to solve a problem, so that its box is the answer.
    """
    if messages[0]["role"] != "user":
        return None
    plain = [plain_turn(message) for message in messages]
    starts = [at for at, message in enumerate(plain) if message["role"] == "user"]
    listed = []
    for start, end in zip(starts, [*starts[1:], len(plain)], strict=True):
        question = _question(plain, start, end, solves)
        if question is None or not (question.answered or end == len(plain)):
            return None
        listed.append(question)
    return listed


def _question(messages: Sequence[Message], start: int, end: int, solves: bool) -> Question | None:
    turns = messages[start + 1 : end]
    if not turns or any(message["role"] not in ("assistant", "tool") for message in turns):
        return None
    replies = [turn for turn in turns if turn["role"] == "assistant" and not turn.get("tool_calls")]
    if any(_mentions_tags(turn.get("content") or "") for turn in turns if turn["role"] == "assistant"):
        return None
    if not replies:
        return Question(start, end, False, None) if turns[-1]["role"] == "assistant" else None
    if len(replies) > 1 or replies[0] is not turns[-1]:
        return None
    said = str(replies[0]["content"])
    reply = (tags.ending_answer(said) or ("", said))[1]
    if solves and (box := last_box(reply)) is not None:
        return Question(start, end, True, box.content.strip())
    outputs = [turn.get("content") or "" for turn in turns if turn["role"] == "tool"]
    stated = [str(messages[start].get("content") or ""), *_arguments(turns)]
    return Question(start, end, True, definite_value(reply, outputs, stated))


def _mentions_tags(text: str) -> bool:
    """Whether a tag of ours is in a text, other than those around the answer that ends it."""
    return any(tags.has_tags(part) for part in tags.ending_answer(text) or (text,))


def _arguments(turns: Sequence[Message]) -> list[str]:
    calls = [call for turn in turns for call in turn.get("tool_calls") or []]
    return [str(call["function"]["arguments"]) for call in calls]


def definite_value(reply: str, outputs: Sequence[str], stated: Sequence[str]) -> str | None:
    r"""The value that answers a question; None if there is any doubt about it.

    A reply's own box is the value if it is the only one, closed, the end of the reply, and not an example of LaTeX.

    Otherwise it is a number, if all of this holds:

    - Every other number of the reply is one of the question or of a call, and none is written in words.
    - A sentence of the reply ends by stating it, such as `The total is $12.50.`, without words that limit it.
    - A tool replied with just this number: a value in its JSON, or a line of its output. It names no thing, as an id
      or an error's code does.
    - Neither the question nor a call holds it.

    Args:
        outputs: what the tools replied.
        stated: the question and the arguments of calls, whose numbers are not new.
    """
    if "\\boxed" in reply or "\\fbox" in reply:
        return _boxed(reply, stated)
    if not outputs:
        return None
    known = {_decimal(each) for text in stated for each in _ANY_NUMBER.findall(text)}
    known |= {abs(each) for each in known}
    numbers = [_decimal(each) for each in _ANY_NUMBER.findall(reply)]
    new = {each for each in numbers if abs(each) not in known}
    if len(new) != 1 or any(each.isnumeric() and not each.isascii() for each in reply):
        return None
    found = [match for match in _STATED.finditer(reply) if _decimal_of(match) in new]
    if len(found) != 1 or sum(each in new for each in numbers) != 1:
        return None
    (match,) = found
    sentence = re.split(r"(?<=[.!?])\s+|\n", reply[: match.end(2)])[-1]
    doubtful = any(rule.search(sentence) for rule in (_NUMBER_WORDS, _NO_ANSWER, _NAMES))
    if doubtful or _NO_ANSWER_AT_ALL.search(reply):
        return None
    if not any(_decimal_of(match) in _values(text) for text in outputs):
        return None
    sign = "-" if "-" in match[1] or "−" in match[1] else ""
    return sign + match[2].replace(",", "")


def _boxed(reply: str, stated: Sequence[str]) -> str | None:
    """The content of a reply's box, if it is the answer."""
    boxes = list(_BOX.finditer(reply))
    if len(boxes) != 1 or "\\fbox" in reply or any(_ABOUT_LATEX.search(text) for text in [reply, *stated]):
        return None
    depth, start = 0, boxes[0].end()
    for at in range(start - 1, len(reply)):
        depth += {"{": 1, "}": -1}.get(reply[at], 0) if reply[at - 1] != "\\" else 0
        if depth == 0:
            value = reply[start:at].strip()
            ends = _BEHIND_BOX.fullmatch(reply, at + 1) is not None
            states = any(each.isdigit() for each in value) or _BEFORE_BOX.search(reply, 0, boxes[0].start())
            return value if ends and states and 0 < len(value) <= _MOST_BOXED else None
    return None


def _values(output: str) -> set[Decimal]:
    """The numbers that a tool replied with: values in its JSON, or whole lines."""
    try:
        parsed = json.loads(output, parse_float=Decimal, parse_int=Decimal)
    except (ValueError, RecursionError):
        parsed = output.splitlines()
    values, waiting = set[Decimal](), [parsed]
    while waiting:
        value = waiting.pop()
        if isinstance(value, Decimal):
            values.add(value)
        elif isinstance(value, str) and (match := _VALUE.fullmatch(value)):
            values.add(_decimal(match[1]))
        elif isinstance(value, list):
            waiting += value
        elif isinstance(value, dict):
            waiting += [
                each for key, each in value.items() if not _NAMES.search(_IN_CAMEL_CASE.sub(" ", key))
            ]
    return values


def _decimal_of(stated: re.Match[str]) -> Decimal:
    number = _decimal(stated[2])
    return -number if "-" in stated[1] or "−" in stated[1] else number


def _decimal(number: str) -> Decimal:
    return Decimal(number.replace(",", "").replace("−", "-"))
