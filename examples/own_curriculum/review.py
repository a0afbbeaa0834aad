"""A curriculum of your own: part of every step reviews problems that the policy solved before and now fails.

Run `python review.py` to see which problems it chooses after some invented outcomes.
"""

from __future__ import annotations

import numpy as np

from rstar2.train.curriculum import posterior
from rstar2.train.outcomes import Outcomes, Problems


def choose(problems: Problems, count: int, rng: np.random.Generator, *, review: float = 0.25) -> list[int]:
    """Return `count` indices into `problems.ids`: forgotten problems, and the rest as `posterior` chooses.

    `review` is a setting: the maximal share of forgotten problems in a step. A recipe sets it by `review = 0.5` in its
    table `[curriculum]`.
    """
    reviewed: list[int] = rng.permutation(forgotten(problems))[: round(review * count)].tolist()
    others = [i for i in range(len(problems)) if i not in reviewed]
    rest = posterior.choose(problems.only(others), count - len(reviewed), rng)
    return reviewed + [others[i] for i in rest]


def forgotten(problems: Problems) -> list[int]:
    """Return the problems whose rollouts were all correct in some step, but not in the last one."""
    outcomes, solved_before, solved_last = problems.outcomes, set(), {}
    for problem, correct, rollouts in zip(
        outcomes.problem.tolist(), outcomes.correct.tolist(), outcomes.rollouts.tolist(), strict=True
    ):
        solved_last[problem] = correct == rollouts
        if solved_last[problem]:
            solved_before.add(problem)
    return sorted(problem for problem in solved_before if not solved_last[problem])


def main() -> None:
    # All 4 rollouts of "sum" were correct in step 1, and 1 of them in step 2. The others were chosen once.
    outcomes = Outcomes.of([(0, 1, 4, 4), (1, 1, 2, 4), (2, 1, 0, 4), (0, 2, 1, 4), (3, 2, 4, 4)])
    names = ("sum", "product", "root", "square")
    problems = Problems(names, step=3, steps=10, rollouts=4, outcomes=outcomes)
    for review in (0.0, 0.5):
        chosen = choose(problems, 2, np.random.default_rng(6), review=review)
        print(f"review {review:g}: chosen {', '.join(names[i] for i in chosen)}")


if __name__ == "__main__":
    main()
