"""The default curriculum, which uses all problems equally often, in a new random order for each pass over the data.

Source: arXiv 2508.20722, which describes no other order. In training, VERL's own sampler draws the order, so a seed
gives the same order as in earlier versions. For simulations, `choose` orders the problems by the same rule as VERL's
sampler.
"""

from __future__ import annotations

import numpy as np

from rstar2.train.outcomes import Problems


def choose(problems: Problems, count: int, rng: np.random.Generator) -> list[int]:
    """Chooses the problems that were used least often, in random order.

    Args:
        problems: the problems to choose from.
        count: number of problems to choose.
        rng: the source of randomness.

    Returns:
        The indices of the `count` chosen problems.
    """
    chosen: list[int] = np.lexsort((rng.random(len(problems)), problems.times_asked))[:count].tolist()
    return chosen
