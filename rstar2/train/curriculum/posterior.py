"""Problems that are likely to have both outcomes among their rollouts, by a Beta posterior of each pass rate.

Source: MoPPS, arXiv 2507.04632: Thompson sampling with the problems nearest a target pass rate (there Top-B), by a
posterior with temporal discounting (`rstar2.train.outcomes.Problems.belief`). A group of n rollouts has both outcomes
with probability 1 - p^n - (1 - p)^n, which falls with the distance of p from 1/2, so the same problems are chosen for
every n. The share of unseen problems, and the floor of exploration that GRESO (arXiv 2506.02177) keeps for problems
without a signal, are added here.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
from pydantic import Field

from rstar2.train.outcomes import DISCOUNT, Discount, Problems

Share = Annotated[float, Field(ge=0, le=1)]


def choose(
    problems: Problems,
    count: int,
    rng: np.random.Generator,
    *,
    target: Annotated[float, Field(gt=0, lt=1)] = 0.5,
    unseen: Share = 0.5,
    explore: Share = 0.1,
    discount: Discount = DISCOUNT,
) -> list[int]:
    """Unseen problems first, then those whose pass rate, drawn from its posterior, is nearest the target.

    Args:
        problems: the problems to choose from.
        target: The pass rate that is sought; 0.5 makes both outcomes most likely.
        unseen: The share of a step's problems that were never asked before, as long as there are such problems. 1: no
            problem is asked twice before each was asked once.
        explore: The share of the others that is drawn at random, whatever is believed of them.
        discount: The factor by which an outcome counts less with every step that has passed since.

    Returns:
        `count` indices.
    """
    new = rng.permutation(np.flatnonzero(problems.times_asked == 0))
    seen = np.flatnonzero(problems.times_asked)
    first = max(round(unseen * count), count - len(seen))
    chosen: list[int] = new[:first].tolist()
    rest = count - len(chosen)
    belief = problems.belief(discount)
    distance = np.abs(rng.beta(belief.alpha[seen], belief.beta[seen]) - target)
    ranked = seen[np.argsort(distance, kind="stable")]
    explored = int(rng.binomial(rest, explore))
    chosen += ranked[: rest - explored].tolist()
    chosen += rng.permutation(ranked[rest - explored :])[:explored].tolist()
    # In random order, so that the replacements of dropped groups, which ask a part of them, are of each kind too.
    shuffled: list[int] = rng.permutation(chosen).tolist()
    return shuffled
