"""Which part of a finished rollout the reward of training grades; likewise where solved problems are left out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rstar2.eval.grader import GraderPool
from rstar2.eval.grader.reading_rules import ReadingRule, part_to_grade
from rstar2.loop.trace import Trace
from rstar2.train.recipe import RewardRule


def reading_rule(rule: RewardRule) -> ReadingRule:
    """The rule that tells whether an answer is correct."""
    return "paper" if rule == "constant" else rule


def text_to_grade(trace: Trace, rule: RewardRule) -> str:
    """The part of a trace that holds its answer under a rule; empty if the rule finds none."""
    return part_to_grade(trace.final_text, reading_rule(rule), trace.finish)


def solved(traces: Iterable[Trace], rule: RewardRule) -> Iterator[tuple[str, bool]]:
    """Each trace's problem, and whether training would reward it, by whatever rule an evaluation has read it."""
    with GraderPool(workers=1) as pool:
        for trace in traces:
            yield trace.problem_id, pool.grade(trace.gold, text_to_grade(trace, rule)).correct
