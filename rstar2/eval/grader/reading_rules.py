"""Where in a model's final turn its answer is read: as the paper says, as the release does, or wherever there is one.

A rule only picks the part that the grader is shown; the comparison with the gold answer is the same for all.
"""

from __future__ import annotations

import re
from typing import Literal

from rstar2.formats.calls import find_calls, without_calls
from rstar2.trace import Finish

ReadingRule = Literal["paper", "boxed", "release", "lenient"]
"""paper: the last box inside the last closed `<answer>` of a finished turn (arXiv 2508.20722, section on the reward).
boxed: the last box anywhere in a finished turn. release: the last box of the text however it ended, else wherever
there is an answer, as microsoft/rStar does. lenient: wherever there is one, see `extract`."""

_BOX = re.compile(r"\\(?:boxed|fbox)\s*{")


def finished(turn: str, finish: Finish = "answer") -> bool:
    """Whether a final turn ended by itself, and not in a tool call that nobody answered."""
    return finish == "answer" and not find_calls(turn)


def part_to_grade(turn: str, rule: ReadingRule, finish: Finish = "answer") -> str:
    """The part of a final turn that holds its answer under a rule; empty where the rule finds none."""
    match rule:
        case "paper":
            return _last_box(_answer_block(turn)) if finished(turn, finish) else ""
        case "boxed":
            return _last_box(turn) if finished(turn, finish) else ""
        case "release":
            return _last_box(turn) or turn
        case "lenient":
            return turn


def benchmark_part(turn: str, finish: Finish) -> tuple[str, ReadingRule]:
    """What an evaluation grades, and the strictest rule that finds an answer there.

    Wherever there is an answer, but in a turn that a budget cut off only a box: a number that happens to stand last
    in an unfinished thought is no answer, and neither is a box in the code of a call.
    """
    strict: tuple[ReadingRule, ...] = ("paper", "boxed")
    found = next((rule for rule in strict if part_to_grade(turn, rule, finish)), None)
    if finished(turn, finish):
        return turn, found or "lenient"
    return _last_box(without_calls(turn)), "boxed"


def _answer_block(turn: str) -> str:
    """What stands in the last `<answer>` behind the reasoning; empty where that is not closed."""
    for end in ("</think>", "</reason>"):
        turn = turn.rpartition(end)[2]
    _, _, block = turn.rpartition("<answer>")
    inside, closing, _ = block.partition("</answer>")
    return inside if closing and "<answer>" in turn else ""


def _last_box(text: str) -> str:
    """The last `\\boxed{…}` with its braces; empty where there is none or it is not closed."""
    boxes = list(_BOX.finditer(text))
    start, position = (boxes[-1].start(), boxes[-1].end() - 1) if boxes else (0, len(text))
    depth = 0
    while position < len(text):
        match text[position]:
            case "\\":
                position += 1
            case "{":
                depth += 1
            case "}":
                depth -= 1
                if not depth:
                    return text[start : position + 1]
        position += 1
    return ""
