"""Rewards: what a finished rollout is worth in training; the same rules say which problems count as solved.

A recipe's `reward` is one of the rules of `rstar2.eval.grader.reading_rules`, `constant`, or `module:object` for a
user's own function of a problem and its graded trace.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, get_args

from rstar2.data.problem import Problem
from rstar2.errors import Failure, did_you_mean
from rstar2.eval.final_answer import part_to_grade
from rstar2.eval.grader import GraderPool
from rstar2.eval.grader.reading_rules import ReadingRule
from rstar2.loop.trace import Trace
from rstar2.plugins import failures_named, is_reference, load_function

RewardFunction = Callable[[Problem, Trace], float]
"""A reward: it gets the problem, and the trace with the grader's verdict, and returns any finite number."""
ROLE = "the reward"
PARAMETERS = ("problem", "trace")
SHIPPED: tuple[str, ...] = (*get_args(ReadingRule), "constant")


class Reward:
    """A recipe's reward, ready to be applied. A UserError if it is a user's own and cannot be loaded."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._function = _function(name)

    def __call__(self, trace: Trace) -> float:
        """The reward of a graded trace. A Failure if a user's function failed, or returned no finite number."""
        problem = Problem(trace.problem_id, trace.problem, trace.gold or "")
        with failures_named(self.name, ROLE):
            returned: Any = self._function(problem, trace)
        try:
            value = math.nan if isinstance(returned, str) else float(returned)
        except (TypeError, ValueError, OverflowError):
            value = math.nan
        if not math.isfinite(value):
            raise Failure(
                f"{ROLE} {self.name} returned {returned!r:.200} for problem {trace.problem_id}, not a finite number",
                "Correct the function.",
            )
        return value


def checked_reward(name: str) -> str:
    """The name of a reward that exists; a ValueError for another, a UserError for a function that cannot be loaded."""
    if is_reference(name):
        Reward(name)
    elif name not in SHIPPED:
        raise ValueError(
            f"reward must be one of {', '.join(map(repr, SHIPPED))}, or 'module:object', "
            f"not {name!r}{did_you_mean(name, SHIPPED)}"
        )
    return name


def reading_rule(name: str) -> ReadingRule:
    """The rule that tells whether an answer is correct: the paper's if the reward names none."""
    rules: tuple[ReadingRule, ...] = get_args(ReadingRule)
    return next((rule for rule in rules if rule == name), "paper")


def text_to_grade(trace: Trace, reward: str) -> str:
    """The part of a trace that holds its answer under a reward's rule; empty if the rule finds none."""
    return part_to_grade(trace, reading_rule(reward))


def solved(traces: Iterable[Trace], reward: str) -> Iterator[tuple[str, bool]]:
    """Each trace's problem, and whether its answer is correct under the reward's rule, whatever rule read it before."""
    with GraderPool(workers=1) as pool:
        for trace in traces:
            yield trace.problem_id, pool.grade(trace.gold, text_to_grade(trace, reward)).correct


def _function(name: str) -> RewardFunction:
    if is_reference(name):
        return load_function(name, ROLE, PARAMETERS)
    if name == "constant":
        return lambda problem, trace: 1.0
    return lambda problem, trace: float(trace.correct)
