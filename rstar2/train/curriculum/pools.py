"""All problems equally often, but for those that are always solved: they rest for some steps.

Source: the buffer of prime-rl, which keeps pools of problems by their pass rate. Here a retired problem returns, as the
policy may have forgotten how to solve it.
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
    """The problems that were asked least often, without those that rest.

    If too few are left, those that have rested longest are asked too.

    Args:
        problems: the problems to choose from.
        retire_after: A problem rests once all rollouts of this many of its last groups were correct.
        return_after: For how many steps after its last group a problem rests.

    Returns:
        `count` indices.
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
    """How many of each problem's last outcomes, counted back from the last, have correct rollouts only."""
    row = np.zeros(len(problems), dtype=np.int64)
    outcomes = problems.outcomes
    for problem, correct, rollouts in zip(
        outcomes.problem.tolist(), outcomes.correct.tolist(), outcomes.rollouts.tolist(), strict=True
    ):
        row[problem] = row[problem] + 1 if correct == rollouts else 0
    return row
