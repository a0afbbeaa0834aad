"""Outcomes of a stage's problems. A curriculum (`rstar2.train.curriculum`) uses them to choose the next problems.

An outcome belongs to one problem in one step. The outcome is the number of rollouts with a verdict, and the number of
correct rollouts among them. An outcome does not include rollouts that failed, rollouts that lost a tool call, and
rollouts whose answer the grader could not decide.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import numpy.typing as npt
from pydantic import Field
from scipy.special import betaln

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Discount = Annotated[float, Field(gt=0, le=1)]
DISCOUNT = 0.995
"""The weight of an outcome is multiplied by this factor in every step, because the policy changes. The weight is halved
after 138 steps. In a stage of the paper's size, a problem is used about every 80 steps. With a lower factor, too little
would be known about a problem's pass rate when the problem is used again."""
PRIOR = 0.5
"""For a problem without outcomes, both parameters of the Beta distribution have this value (Jeffreys' prior). Because
the parameters are below 1, pass rates near 0 and near 1 are assumed to be more frequent than pass rates in between."""


@dataclass(frozen=True)
class Outcomes:
    """Outcomes in the order in which they became known. All arrays have the shape (outcomes,)."""

    problem: Ints
    """For each outcome, the index of its problem."""
    step: Ints
    """For each outcome, its step in the stage, counted from 1. Outcomes of the previous stage have step numbers of 0
    and below."""
    correct: Ints
    """For each outcome, the number of correct rollouts."""
    rollouts: Ints
    """For each outcome, the number of rollouts with a verdict."""

    @classmethod
    def of(cls, rows: Sequence[tuple[int, int, int, int]]) -> Outcomes:
        """Returns the outcomes of rows (problem, step, correct, rollouts)."""
        table = np.array(rows, dtype=np.int64).reshape(-1, 4)
        return cls(*table.T)


@dataclass(frozen=True)
class Belief:
    """A Beta distribution for the pass rate of each problem. All arrays have the shape (problems,)."""

    alpha: Floats
    beta: Floats

    @property
    def mean(self) -> Floats:
        """The expected pass rates, in [0, 1]."""
        return self.alpha / (self.alpha + self.beta)

    def all_correct(self, rollouts: int) -> Floats:
        """For each problem, the probability that the next n = `rollouts` rollouts are all correct. The probability is
        the mean of p^n over the distribution of the pass rate p."""
        return np.asarray(np.exp(betaln(self.alpha + rollouts, self.beta) - betaln(self.alpha, self.beta)))

    def none_correct(self, rollouts: int) -> Floats:
        """For each problem, the probability that none of the next n = `rollouts` rollouts is correct. The probability
        is the mean of (1 - p)^n over the distribution of the pass rate p."""
        return np.asarray(np.exp(betaln(self.alpha, self.beta + rollouts) - betaln(self.alpha, self.beta)))

    def solved(self, rollouts: int) -> Bools:
        """For each problem, whether it is more likely than not that the next `rollouts` rollouts are all correct."""
        return self.all_correct(rollouts) > 0.5

    def hopeless(self, rollouts: int) -> Bools:
        """For each problem, whether it is more likely than not that none of the next `rollouts` rollouts is correct."""
        return self.none_correct(rollouts) > 0.5


@dataclass(frozen=True)
class Problems:
    """The problems from which a curriculum chooses, and their outcomes. All arrays have the shape (problems,)."""

    ids: tuple[str, ...]
    step: int
    """The step for which problems are chosen, counted from 1. Problems are chosen for the step after the last step with
    outcomes."""
    steps: int
    """Number of steps of the stage."""
    rollouts: int
    """Number of rollouts per problem in a step."""
    outcomes: Outcomes

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def times_asked(self) -> Ints:
        """The number of outcomes of each problem."""
        return np.bincount(self.outcomes.problem, minlength=len(self))

    @property
    def last_asked(self) -> Ints:
        """The step of each problem's last outcome; -1,000,000 for a problem without outcomes."""
        last = np.full(len(self), -1_000_000)
        np.maximum.at(last, self.outcomes.problem, self.outcomes.step)
        return last

    def belief(self, discount: float = DISCOUNT, prior: float = PRIOR) -> Belief:
        """Returns the posterior of each problem's pass rate. The weight of an outcome is `discount` ** age.

        The age of an outcome is counted in steps. An outcome of the last step has age 0.

        Source: MoPPS, arXiv 2507.04632, recursive Bayesian update with temporal discounting: alpha' = discount * alpha
        + (1 - discount) * prior + correct, and the same for beta with the number of wrong rollouts. MoPPS updates the
        posterior of a problem only when the problem is used, and uses a prior of 1. In rstar2, the posteriors of
        all problems are updated in every step, because the policy changes in every step. The earlier outcomes of a
        problem that is not used therefore lose weight.
        """
        outcomes, size = self.outcomes, len(self)
        weight = discount ** np.maximum(0, self.step - 1 - outcomes.step)
        wrong = outcomes.rollouts - outcomes.correct
        correct_sum, wrong_sum = (
            np.asarray(np.bincount(outcomes.problem, weight * count, minlength=size), dtype=np.float64)
            for count in (outcomes.correct, wrong)
        )
        return Belief(prior + correct_sum, prior + wrong_sum)

    def only(self, indices: Sequence[int]) -> Problems:
        """Returns only the problems at `indices`, in the order of `indices`."""
        place = np.full(len(self), -1)
        place[np.asarray(indices, dtype=np.int64)] = np.arange(len(indices))
        outcomes = self.outcomes
        stays = place[outcomes.problem] >= 0
        return Problems(
            tuple(self.ids[i] for i in indices),
            self.step,
            self.steps,
            self.rollouts,
            Outcomes(
                place[outcomes.problem[stays]],
                outcomes.step[stays],
                outcomes.correct[stays],
                outcomes.rollouts[stays],
            ),
        )
