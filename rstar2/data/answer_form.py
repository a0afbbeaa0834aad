r"""Finds the questions of SFT conversations, and the definite value that answers each question.

With these values, SFT can teach a conversation in the answer form, which is the form that RL rewards: a `\boxed{}`
inside `<answer>`. Most replies in SFT data have no box. A wrong value in a box does more harm than a right value does
good. Therefore a reply gets no box if there is any doubt about its value.
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
"""The key of a message's thought. The key is missing if the message has no thought, or has it in its text."""

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
"""Units that may follow a number. A number with one of these units still counts as a complete value."""
_STATED = re.compile(
    r"(?:\b(?:is|are|(?:will|would) be|equals?|comes to)|'s|=)\s+(?:equal to\s+|approximately\s+)?"
    rf"\**({_CURRENCY}?\s?[-−]?{_CURRENCY}?)({_NUMBER})(?:\s?{_UNIT})?(?=\**(?:\.\**(?:\s|$)|\s*$))"
)
"""Matches the end of a sentence that states a value: `The total is $12.50.` or `It is 21 degrees Celsius.`"""
_VALUE = re.compile(rf"\s*{_CURRENCY}?\s?([-−]?{_NUMBER})\s?{_UNIT}?\s*")
"""Matches a text that is a single number, optionally with a currency sign or a unit."""
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
"""Matches words which show that a sentence states no value, or more than one value."""
_NO_ANSWER_AT_ALL = re.compile(
    r"\b(?:sorry|apologi[sz]e|unfortunately|errors?|fail(?:ed|s|ure)?|unable|cannot|invalid)\b|n't\b",
    re.IGNORECASE,
)
"""Matches words which show that a reply contains no answer."""
_NAMES = re.compile(
    r"(?:^|[^a-z])(?:ids?|codes?|status|errors?|isbn|zip|pin|passwords?|phone|serial|account|flight|invoice|booking"
    r"|reservation|confirmation|tracking|orders?|tickets?|tables?|rooms?|seats?|gates?|pages?|rows?|steps?|versions?"
    r"|ports?|ranks?|episodes?|chapters?|number|limits?|counts?|years?|dates?|days? of|months?|times?|hour"
    r"|minute|alarms?|reminders?|latitude|longitude)(?:[^a-z]|$)",
    re.IGNORECASE,
)
"""Matches words which show that a number is not an answer. Such a number is, for example, an id, a count of results, or
a part of a date."""
_IN_CAMEL_CASE = re.compile(r"(?<=[a-z])(?=[A-Z])")
_BOX = re.compile(r"\\boxed\s*\{")
_BEHIND_BOX = re.compile(r"[\s.!$*]*|\s*\\[\])][\s.]*")
_BEFORE_BOX = re.compile(r"(?:\b(?:is|are|equals?|answer)|=|:)[\s:$*(\[\\]*$")
_ABOUT_LATEX = re.compile(r"latex|amsmath|amssymb|\btex\b|markdown|`", re.IGNORECASE)
_MAX_BOXED = 100
"""Maximum length of a boxed value in characters. A longer box is assumed to contain a derivation."""


@dataclass(frozen=True)
class Question:
    """A user's message and the messages that follow it, up to the next user's message."""

    start: int
    """Index of the user's message in the conversation."""
    end: int
    """Index of the next user's message, or the number of messages if no user's message follows."""
    answered: bool
    """Whether the last of these messages is a reply. If False, it is a call, and the conversation ends with it."""
    value: str | None
    """The definite value that answers the question. None if no definite value answers the question."""


def split_thought(message: Message) -> tuple[str | None, str]:
    """Returns the thought of a turn, and the rest of the turn's text. Calls that are written in tags stay in the rest
    of the text.

    The thought is None if the turn has no thought.
    """
    text = message.get("content") or ""
    thought = message.get(THOUGHT) or None
    if (in_tags := tags.leading_thought(text)) is not None:
        thought, text = thought or in_tags[0], in_tags[1]
    return thought, text


def plain_turn(message: Message) -> Message:
    """Returns a turn with its thought in `reasoning_content` and its calls in `tool_calls`.

    Messages of other roles are returned unchanged.
    """
    if message["role"] != "assistant":
        return message
    thought, text = split_thought(message)
    plain = {**message, "content": text}
    if not message.get("tool_calls") and (ending := tags.ending_calls(text)) is not None:
        calls = [tags.openai_call(call, number) for number, call in enumerate(ending[1])]
        plain |= {"content": ending[0], "tool_calls": calls}
    return plain if thought is None else {**plain, THOUGHT: thought}


def questions(messages: Sequence[Message], solves: bool = False) -> list[Question] | None:
    """Returns the questions of a conversation, or None if the conversation cannot be taught in the answer form.

    A conversation can be taught in the answer form if it begins with a user's message and its turns do not mention
    rstar2's tags. Each question needs exactly one reply, after all of its calls. Only the last question may end with a
    call instead.

    Set `solves` if a model wrote the conversation to solve a problem. If `solves` is set, the last box in the reply is
    the answer.
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
    text = str(replies[0]["content"])
    reply = (tags.ending_answer(text) or ("", text))[1]
    if solves and (box := last_box(reply)) is not None:
        return Question(start, end, True, box.content.strip())
    outputs = [turn.get("content") or "" for turn in turns if turn["role"] == "tool"]
    stated = [str(messages[start].get("content") or ""), *_arguments(turns)]
    return Question(start, end, True, definite_value(reply, outputs, stated))


def _mentions_tags(text: str) -> bool:
    """Whether a text contains rstar2's tags, not counting the tags around an answer at the end of the text."""
    return any(tags.has_tags(part) for part in tags.ending_answer(text) or (text,))


def _arguments(turns: Sequence[Message]) -> list[str]:
    calls = [call for turn in turns for call in turn.get("tool_calls") or []]
    return [str(call["function"]["arguments"]) for call in calls]


def definite_value(reply: str, outputs: Sequence[str], stated: Sequence[str]) -> str | None:
    r"""Returns the value that answers a question. Returns None if there is any doubt about the value.

    A box in the reply is the value if it is the only box, it is closed, it ends the reply, and it is not an example of
    LaTeX.

    Without a box, a number is the value if all of these conditions hold:

    - Every other number in the reply also occurs in the question or in a call, and no number is written in words.
    - A sentence of the reply ends with the number, as in `The total is $12.50.`, and contains no words that cast doubt
      on the number, such as `at most` or `might`.
    - A tool returned exactly this number, as a value in its JSON or as a line of its output. The number is not the name
      of a thing, such as an id or an error code.
    - Neither the question nor a call contains the number.

    Args:
        reply: the text of the reply.
        outputs: the outputs of the tools.
        stated: the question and the arguments of calls.
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
    matches = [match for match in _STATED.finditer(reply) if _decimal_of(match) in new]
    if len(matches) != 1 or sum(each in new for each in numbers) != 1:
        return None
    (match,) = matches
    sentence = re.split(r"(?<=[.!?])\s+|\n", reply[: match.end(2)])[-1]
    doubtful = any(rule.search(sentence) for rule in (_NUMBER_WORDS, _NO_ANSWER, _NAMES))
    if doubtful or _NO_ANSWER_AT_ALL.search(reply):
        return None
    if not any(_decimal_of(match) in _values(text) for text in outputs):
        return None
    sign = "-" if "-" in match[1] or "−" in match[1] else ""
    return sign + match[2].replace(",", "")


def _boxed(reply: str, stated: Sequence[str]) -> str | None:
    """Returns the content of the reply's box, if the content is the answer.

    Returns None if the box is not the answer.
    """
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
            return value if ends and states and 0 < len(value) <= _MAX_BOXED else None
    return None


def _values(output: str) -> set[Decimal]:
    """Returns the numbers in a tool's output. A number is returned only if it is a value in JSON output, or a whole
    line of other output."""
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
