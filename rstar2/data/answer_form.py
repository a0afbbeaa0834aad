r"""Finds conversations that can be taught in the form that RL rewards, and the definite value that answers a question.

RL pays for a `\boxed{}` inside `<answer>`. Most replies of SFT's sources have no such value: a definite value is one
that the reply itself boxes, or its only new number, if a tool's reply states it too.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from rstar2.eval.grader.boxes import last_box
from rstar2.loop.turns import tags

Message = dict[str, Any]

_NUMBER = re.compile(r"(?<![\w.,:/\-])[-−]?\d+(?:,\d{3})*(?:\.\d+)?(?![\w:/]|[.,\-−]\d|-\w)")
_DIGIT = re.compile(r"\d")
_LABEL = re.compile(
    r"(?:\b(?:id|code|isbn|zip|version|(?:order|tracking|phone|serial|account|flight|invoice|confirmation) number)\b"
    r"[^\w\d]*(?:is\b[^\w\d]*)?|#)$",
    re.IGNORECASE,
)
"""Before a number: it names a thing, and is no answer."""
_MOST_PLACES = 28
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


def questions(messages: Sequence[Message]) -> list[Question] | None:
    """The questions of a conversation that can be taught in the form that RL rewards; None if it cannot be.

    It cannot be if it has a system text of its own, turns with our tags in them, or turns that no question opens.
    """
    if messages[0]["role"] != "user":
        return None
    starts = [at for at, message in enumerate(messages) if message["role"] == "user"]
    found = []
    for start, end in zip(starts, [*starts[1:], len(messages)], strict=True):
        question = _question(messages, start, end)
        if question is None or not (question.answered or end == len(messages)):
            return None
        found.append(question)
    return found


def _question(messages: Sequence[Message], start: int, end: int) -> Question | None:
    turns = messages[start + 1 : end]
    if not turns or any(message["role"] not in ("assistant", "tool") for message in turns):
        return None
    replies = [turn for turn in turns if turn["role"] == "assistant" and not turn.get("tool_calls")]
    if any(tags.has_tags(turn.get("content") or "") for turn in turns if turn["role"] == "assistant"):
        return None
    if not replies:
        return Question(start, end, False, None) if turns[-1]["role"] == "assistant" else None
    if len(replies) > 1 or replies[0] is not turns[-1]:
        return None
    outputs = [turn.get("content") or "" for turn in turns if turn["role"] == "tool"]
    stated = [str(messages[start].get("content") or ""), *_arguments(turns)]
    return Question(start, end, True, definite_value(str(replies[0]["content"]), outputs, stated))


def _arguments(turns: Sequence[Message]) -> list[str]:
    calls = [call for turn in turns for call in turn.get("tool_calls") or []]
    return [str(call["function"]["arguments"]) for call in calls]


def definite_value(reply: str, outputs: Sequence[str], stated: Sequence[str]) -> str | None:
    """The value that answers a question: the reply's box, or its only new number, if a tool's reply confirms it.

    Args:
        outputs: what the tools replied.
        stated: the question and the arguments of calls, whose numbers are not new.

    A number confirms one of the reply if it is the same, or the same rounded to the reply's places. Dates, times and
    numbers that name a thing, such as an order's, are no values.
    """
    # Most replies are long and have no box, which this tells at once.
    if "box" in reply and (box := last_box(reply)) is not None:
        return box.content.strip() if 0 < len(box.content.strip()) <= _MOST_BOXED else None
    if not outputs or not _DIGIT.search(reply):
        return None
    matches = list(_NUMBER.finditer(reply))
    if len(_DIGIT.findall(_NUMBER.sub("", reply))) or any(
        _LABEL.search(reply[max(0, match.start() - 40) : match.start()]) for match in matches
    ):
        return None
    known = {_decimal(each) for text in stated for each in _NUMBER.findall(text)}
    new = list(dict.fromkeys(match[0] for match in matches if _decimal(match[0]) not in known))
    if len({_decimal(each) for each in new}) != 1:
        return None
    places = len(new[0].partition(".")[2])
    values = [_decimal(each) for text in outputs for each in _NUMBER.findall(text)]
    if places > _MOST_PLACES or not any(_rounded(value, places) == _decimal(new[0]) for value in values):
        return None
    return new[0].replace(",", "").replace("−", "-")


def _decimal(number: str) -> Decimal:
    return Decimal(number.replace(",", "").replace("−", "-"))


def _rounded(value: Decimal, places: int) -> Decimal:
    return round(value, places) if value.adjusted() + places < _MOST_PLACES else value
