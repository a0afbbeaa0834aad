"""A selection that draws rollouts at random, but never a rollout that has a void turn.

A void turn has neither a call that parses nor an answer. Source: SimpleTIR, arXiv 2509.02479.
"""

from __future__ import annotations

import numpy as np

from rstar2.train.group import Group, Rollout
from rstar2.train.select import random


def select(group: Group, rng: np.random.Generator) -> list[int]:
    """Draws G rollouts at random from the rollouts without a void turn.

    A call in the last allowed turn is not run, but the turn that contains the call is not void.

    Args:
        group: the N rollouts of a problem; G is `group.keep`.
        rng: the source of randomness.

    Returns:
        The indices of min(M, G) rollouts, where M is the number of rollouts without a void turn.
    """
    usable = [i for i, rollout in enumerate(group.rollouts) if not excludes(rollout)]
    return [usable[i] for i in random.select(group.only(usable), rng)]


def excludes(rollout: Rollout) -> bool:
    """Whether a rollout has a void turn."""
    return rollout.void_turns > 0
