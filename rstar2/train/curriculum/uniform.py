"""All problems equally often: each pass over the data in a new random order.

Source: arXiv 2508.20722, which names no other order. In training VERL's own sampler draws these passes, so that the
order of a seed is that of runs of earlier versions; `choose` does the same for simulations.
"""

from __future__ import annotations

import numpy as np

from rstar2.train.outcomes import Problems


def choose(problems: Problems, count: int, rng: np.random.Generator) -> list[int]:
    """The problems that were asked least often, in random order.

    Args:
        problems: the problems to choose from.

    Returns:
        `count` indices.
    """
    chosen: list[int] = np.lexsort((rng.random(len(problems)), problems.times_asked))[:count].tolist()
    return chosen
