"""Reading rules: which part of a model's final turn counts as its answer.

All rules read the same final turn (see `final_turn`), and the comparison with the gold answer is the same for all
rules. A reading rule only selects the part of the final turn that is graded.
"""

from __future__ import annotations

from typing import Literal

from rstar2.eval.grader.boxes import last_box
from rstar2.eval.grader.final_turn import final_turn, last_turn
from rstar2.loop.turns.tags import after_reasoning, find_calls

ReadingRule = Literal["paper", "boxed", "release", "lenient"]
"""Which part of the final turn is graded. paper: the last box inside the last closed `<answer>` of a finished turn
(arXiv 2508.20722, section on the reward). boxed: the last box of a finished turn. release: the last box of the turn,
even of an unfinished turn, or any answer if the turn has no box. lenient: any answer (see `extract`)."""


def finished(output: str, ended: bool = True) -> bool:
    """Whether an output in our own tags is finished: the output ended by itself, and its final turn has no unanswered
    tool call.

    `ended` is false if a budget cut the output off.
    """
    return ended and not find_calls(last_turn(output))


def part_to_grade(output: str, rule: ReadingRule, finished: bool) -> str:
    """Returns the part of an output that counts as its answer under a rule, or an empty text if the rule finds no
    answer."""
    match rule:
        case "paper":
            return _boxed(_answer_block(final_turn(output))) if finished else ""
        case "boxed":
            return _boxed(final_turn(output)) if finished else ""
        case "release":
            return _boxed(final_turn(output)) or output
        case "lenient":
            return output


def benchmark_part(output: str, finished: bool) -> tuple[str, ReadingRule]:
    """Returns the part of an output that an evaluation grades, and the strictest rule that finds an answer in it.

    In a finished turn, any answer counts. In a turn that a budget cut off, only a box counts: the last number of an
    unfinished thought is not an answer.
    """
    if not finished:
        return _boxed(final_turn(output)), "boxed"
    strict: tuple[ReadingRule, ...] = ("paper", "boxed")
    strictest = next((rule for rule in strict if part_to_grade(output, rule, finished)), None)
    return output, strictest or "lenient"


def _answer_block(turn: str) -> str:
    """Returns the text inside the last `<answer>` after the reasoning, or an empty text if this `<answer>` is not
    closed."""
    _, opening, block = after_reasoning(turn).rpartition("<answer>")
    inside, closing, _ = block.partition("</answer>")
    return inside if opening and closing else ""


def _boxed(text: str) -> str:
    r"""Returns the last box of a text as `\boxed{…}`, or an empty text if the box is not closed, is empty or is part of
    a formula."""
    box = last_box(text)
    return rf"\boxed{{{box.content}}}" if box and box.content and box.closed and box.whole else ""
