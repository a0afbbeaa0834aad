"""A curriculum that uses all problems equally often, but lets problems that are always solved rest for some steps.

Source: the buffer of prime-rl, which sorts problems into pools by their pass rate. In rstar2, a problem returns after
its rest, because the policy may have forgotten how to solve it.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
from pydantic import Field

from rstar2.train.curriculum import uniform
from rstar2.train.outcomes import Ints, Problems

Groups = Annotated[int, Field(ge=1)]
Steps = Annotated[int, Field(ge=1)]


def choose(
    problems: Problems,
    count: int,
    rng: np.random.Generator,
    *,
    retire_after: Groups = 1,
    return_after: Steps = 20,
) -> list[int]:
    """Among the problems that do not rest, chooses the problems that were used least often.

    If fewer than `count` problems do not rest, the problems that have rested longest are added.

    Args:
        problems: the problems to choose from.
        count: number of problems to choose.
        rng: the source of randomness.
        retire_after: A problem rests after this many consecutive groups in which all rollouts were correct.
        return_after: Number of steps that a problem rests after its last group.

    Returns:
        The indices of the `count` chosen problems.
    """
    rests = (_solved_in_a_row(problems) >= retire_after) & (
        problems.step - problems.last_asked <= return_after
    )
    active: list[int] = np.flatnonzero(~rests).tolist()
    chosen = [active[i] for i in uniform.choose(problems.only(active), min(count, len(active)), rng)]
    resting = np.flatnonzero(rests)
    longest: list[int] = resting[np.argsort(problems.last_asked[resting], kind="stable")].tolist()
    return chosen + longest[: count - len(chosen)]


def _solved_in_a_row(problems: Problems) -> Ints:
    """Returns, for each problem, the length of its current streak of groups with only correct rollouts.

    The array has shape (problems,).
    """
    row = np.zeros(len(problems), dtype=np.int64)
    outcomes = problems.outcomes
    for problem, correct, rollouts in zip(
        outcomes.problem.tolist(), outcomes.correct.tolist(), outcomes.rollouts.tolist(), strict=True
    ):
        row[problem] = row[problem] + 1 if correct == rollouts else 0
    return row
