"""A curriculum that prefers problems that are likely to have both correct and wrong rollouts, according to a Beta
posterior of each problem's pass rate.

The source is MoPPS, arXiv 2507.04632. MoPPS draws each problem's pass rate from a posterior with temporal discounting
(`rstar2.train.outcomes.Problems.belief`), and takes the problems whose drawn pass rate is nearest to a target. MoPPS
calls its method Thompson sampling with Top-B. If p is the pass rate, a group of n rollouts has both correct and wrong
rollouts with probability 1 - p^n - (1 - p)^n. For every group size n, the probability that a group has both correct and
wrong rollouts falls as p moves away from 1/2, so the same problems are best for every n.

Two settings are not from MoPPS: `unseen`, the share of unseen problems, and `explore`, the share of problems chosen at
random. In a similar way, GRESO (arXiv 2506.02177) explores problems that give no gradient.
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
    """Chooses unseen problems, then problems with a pass rate near the target. The pass rate of each problem is drawn
    from its posterior.

    Args:
        problems: the problems to choose from.
        count: number of problems to choose.
        rng: the source of randomness.
        target: The target pass rate. A group is most likely to have both correct and wrong rollouts if the target is
            0.5.
        unseen: The share of a step's problems that is reserved for problems that have never been used, as long as there
            are enough of them. With a share of 1, no problem is used twice before every problem has been used once.
        explore: After the unseen problems are chosen, the rest of the step is filled with problems that were used
            before. This is the expected share of the rest that is drawn at random, regardless of pass rate.
        discount: The weight of an outcome is multiplied by this factor in every step, because the policy changes.

    Returns:
        The indices of the `count` chosen problems, in random order.
    """
    new_problems = rng.permutation(np.flatnonzero(problems.times_asked == 0))
    used_problems = np.flatnonzero(problems.times_asked)
    first = max(round(unseen * count), count - len(used_problems))
    chosen: list[int] = new_problems[:first].tolist()
    rest = count - len(chosen)
    belief = problems.belief(discount)
    distance = np.abs(rng.beta(belief.alpha[used_problems], belief.beta[used_problems]) - target)
    ranked = used_problems[np.argsort(distance, kind="stable")]
    explored = int(rng.binomial(rest, explore))
    chosen += ranked[: rest - explored].tolist()
    chosen += rng.permutation(ranked[rest - explored :])[:explored].tolist()
    # To replace dropped groups, only the first of these problems are used. The random order makes them a fair sample.
    shuffled: list[int] = rng.permutation(chosen).tolist()
    return shuffled
