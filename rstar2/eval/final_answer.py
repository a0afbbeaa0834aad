"""Finds the part of a trace that is graded: applies the rules of `rstar2.eval.grader.reading_rules` to a trace.

If a turn is written in our own tags, its whole text is searched for the answer. If a turn is written in the format of a
model family, it is already split into the thought, the calls and the remaining text, and only the remaining text is
searched for the answer.
"""

from __future__ import annotations

from rstar2.eval.grader import reading_rules
from rstar2.eval.grader.final_turn import ended_by_server
from rstar2.eval.grader.reading_rules import ReadingRule
from rstar2.loop.trace import Trace, Turn


def final_text(trace: Trace) -> tuple[str, bool]:
    """Returns the text in which to look for an answer, and whether the model ended its final turn itself.

    The text is empty if the server reports a refusal, because a number in a refusal is no answer.
    """
    if trace.finish == "refusal":
        return "", True
    ended = trace.finish == "answer"
    turn = trace.turns[-1] if trace.turns else Turn(text="", start=0, end=0)
    if turn.tagged:
        text = turn.text if trace.counted_tokens is None else ended_by_server(turn.text)
        return text, reading_rules.finished(text, ended)
    return turn.answer_text, ended


def part_to_grade(trace: Trace, rule: ReadingRule) -> str:
    """Returns the part of a trace that holds the answer according to a reading rule. The part is empty if the rule
    finds no answer."""
    text, finished = final_text(trace)
    return reading_rules.part_to_grade(text, rule, finished)


def benchmark_part(trace: Trace) -> tuple[str, ReadingRule]:
    """Returns the part of a trace that an evaluation grades, and the strictest reading rule that finds an answer in
    this part."""
    return reading_rules.benchmark_part(*final_text(trace))
