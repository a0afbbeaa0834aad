"""Rewards of finished rollouts. The rules for rewards also decide which problems count as solved.

A recipe's `reward` is one of the rules of `rstar2.eval.grader.reading_rules`, or `constant`, or `module:object` for a
user's own function of a problem and its graded trace. A recipe's `penalty` is subtracted from the reward.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, get_args

from pydantic import Field, model_validator

from rstar2.config import Strict
from rstar2.data.problem import Problem
from rstar2.errors import Failure, did_you_mean
from rstar2.eval.final_answer import part_to_grade
from rstar2.eval.grader import GraderPool
from rstar2.eval.grader.reading_rules import ReadingRule
from rstar2.loop.trace import Trace
from rstar2.plugins import failures_named, is_reference, load_function

RewardFunction = Callable[[Problem, Trace], float]
"""The type of a reward function. The function takes the problem and the trace with the grader's verdict, and returns a
finite number."""
ROLE = "the reward"
PARAMETERS = ("problem", "trace")
SHIPPED: tuple[str, ...] = (*get_args(ReadingRule), "constant")


class PenaltySettings(Strict):
    """Penalties that lower the reward of a correct rollout because of the rollout's length. By default there are no
    penalties. The paper uses no penalties.

    A wrong rollout has no penalty. If wrong rollouts had a penalty, a wrong rollout that gives up early would be worth
    more than a wrong rollout that tries longer. The sum of `length` and `turns` must be below 1, so a correct rollout
    is always worth more than a wrong rollout. To find groups with equal rewards (`groups.drop_equal_rewards`), rewards
    are compared without penalties.
    """

    length: float = Field(0.0, ge=0, lt=1)
    """Share of the reward that a correct rollout loses if it uses the whole token budget (`rollout.tokens`). A shorter
    rollout loses less, in proportion to its tokens. Set this key if rollouts grow longer without becoming better. The
    idea comes from arXiv 2502.04463, which compares a rollout's length with the problem's other correct rollouts
    instead of the token budget."""
    turns: float = Field(0.0, ge=0, lt=1)
    """Share of the reward that a correct rollout loses if it takes `rollout.max_turns` turns. A rollout with fewer
    turns loses less, in proportion to its turns after the first. A rollout with one turn loses nothing."""

    @model_validator(mode="after")
    def _leaves_something(self) -> PenaltySettings:
        if self.length + self.turns >= 1:
            raise ValueError(
                f"penalty.length + penalty.turns = {self.length + self.turns:g} is not below 1: the reward of a "
                "correct rollout could then be no higher than the reward of a wrong rollout"
            )
        return self


@dataclass(frozen=True)
class Penalty:
    """The penalties of a stage, and the limits with which a rollout's tokens and turns are compared."""

    settings: PenaltySettings
    max_tokens: int
    max_turns: int

    def of(self, trace: Trace) -> float:
        """Returns the penalty of a graded trace, in [0, 1). The penalty is 0 if the answer is not correct."""
        if not trace.correct:
            return 0.0
        length = min(trace.tokens / self.max_tokens, 1.0)
        turns = (len(trace.turns) - 1) / max(self.max_turns - 1, 1)
        return self.settings.length * length + self.settings.turns * min(turns, 1.0)


class Reward:
    """Applies a recipe's reward. Raises UserError if the reward is a user's own function that cannot be loaded."""

    def __init__(self, name: str, penalty: Penalty | None = None) -> None:
        self.name = name
        self._function = _function(name)
        self._penalty = penalty

    def rewarded(self, trace: Trace) -> Trace:
        """Returns a copy of a graded trace with its reward and penalty. Raises Failure in the same cases as
        `__call__`."""
        penalty = self._penalty.of(trace) if self._penalty else 0.0
        return trace.model_copy(update={"reward": self(trace) - penalty, "penalty": penalty})

    def __call__(self, trace: Trace) -> float:
        """Returns the reward of a graded trace, without the penalty.

        Raises Failure if a user's function failed, or did not return a finite number.
        """
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
    """Checks the name of a reward, and returns the name.

    Raises ValueError if there is no such reward, and UserError if a user's function cannot be loaded.
    """
    if is_reference(name):
        Reward(name)
    elif name not in SHIPPED:
        raise ValueError(
            f"reward must be one of {', '.join(map(repr, SHIPPED))}, or 'module:object', "
            f"not {name!r}{did_you_mean(name, SHIPPED)}"
        )
    return name


def penalty_fault(reward: str, penalty: PenaltySettings) -> str:
    """Returns text that says why a reward cannot be combined with a penalty, or an empty text if the reward and the
    penalty can be combined."""
    if reward in get_args(ReadingRule) or not (penalty.length or penalty.turns):
        return ""
    return (
        f"penalty.length = {penalty.length:g} and penalty.turns = {penalty.turns:g} need a reward of 1 for a correct "
        f"answer and 0 for a wrong answer ({', '.join(get_args(ReadingRule))}), not reward = {reward!r}; a function of "
        "your own can subtract the penalty itself"
    )


def reading_rule(name: str) -> ReadingRule:
    """Returns the rule by which a trace's answer is read for the verdict: the reward's own rule, or `paper` if the
    reward has no rule of its own."""
    rules: tuple[ReadingRule, ...] = get_args(ReadingRule)
    return next((rule for rule in rules if rule == name), "paper")


def text_to_grade(trace: Trace, reward: str) -> str:
    """Returns the part of a trace that contains the answer according to the rule of a reward, or an empty text if the
    rule finds no answer."""
    return part_to_grade(trace, reading_rule(reward))


def solved(traces: Iterable[Trace], reward: str) -> Iterator[tuple[str, bool]]:
    """Grades traces again with the rule of a reward. For each trace, yields the problem's id and whether the answer is
    correct."""
    with GraderPool(workers=1) as pool:
        for trace in traces:
            yield trace.problem_id, pool.grade(trace.gold, text_to_grade(trace, reward)).correct


def _function(name: str) -> RewardFunction:
    if is_reference(name):
        return load_function(name, ROLE, PARAMETERS)
    if name == "constant":
        return lambda problem, trace: 1.0
    return lambda problem, trace: float(trace.correct)
