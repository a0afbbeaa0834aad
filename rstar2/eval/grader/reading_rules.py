"""Which part of a model's final turn holds its answer: as the paper says, as the release does, or any part.

All rules read the same final turn, see `final_turn`. A rule only picks the part that the grader is shown; how that is
compared with the gold answer is the same for all.
"""

from __future__ import annotations

from typing import Literal

from rstar2.eval.grader.boxes import last_box
from rstar2.eval.grader.final_turn import final_turn, last_turn
from rstar2.loop.turns.tags import after_reasoning, find_calls

ReadingRule = Literal["paper", "boxed", "release", "lenient"]
"""paper: the last box inside the last closed `<answer>` of a finished turn (arXiv 2508.20722, section on the reward).
boxed: the last box of a finished turn. release: the last box of the turn however it ended, else any answer in it.
lenient: any answer in it, see `extract`."""


def finished(output: str, ended: bool = True) -> bool:
    """Whether an output in our tags is finished: its final turn has no tool call, which nobody answered.

    `ended` is false if a budget cut it off.
    """
    return ended and not find_calls(last_turn(output))


def part_to_grade(output: str, rule: ReadingRule, finished: bool) -> str:
    """The part of an output that holds its answer under a rule; empty if the rule finds none."""
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
    """What an evaluation grades, and the strictest rule that finds an answer there.

    In a turn that ended by itself that is any answer. In one that a budget cut off it is only a box, because a number
    that happens to stand last in an unfinished thought is no answer.
    """
    if not finished:
        return _boxed(final_turn(output)), "boxed"
    strict: tuple[ReadingRule, ...] = ("paper", "boxed")
    strictest = next((rule for rule in strict if part_to_grade(output, rule, finished)), None)
    return output, strictest or "lenient"


def _answer_block(turn: str) -> str:
    """The text inside the last `<answer>` behind the reasoning; empty if that is not closed."""
    _, opening, block = after_reasoning(turn).rpartition("<answer>")
    inside, closing, _ = block.partition("</answer>")
    return inside if opening and closing else ""


def _boxed(text: str) -> str:
    r"""The last box of a text as `\boxed{…}`; empty if that is unclosed, empty or part of a formula."""
    box = last_box(text)
    return rf"\boxed{{{box.content}}}" if box and box.content and box.closed and box.whole else ""
