"""Rollouts at random, without those that have a void turn: one with neither a call that parses nor an answer.

Source: SimpleTIR, arXiv 2509.02479.
"""

from __future__ import annotations

import numpy as np

from rstar2.train.group import Group, Rollout
from rstar2.train.select import random


def select(group: Group, rng: np.random.Generator) -> list[int]:
    """SimpleTIR: G at random of the rollouts in which every turn has a call that parses or an answer.

    A call in the last turn that the limit allows counts, although it is not run.

    Args:
        group: the N rollouts of a problem.

    Returns:
        The indices of min(M, G) rollouts, if M of them have no void turn.
    """
    usable = [i for i, rollout in enumerate(group.rollouts) if not excludes(rollout)]
    return [usable[i] for i in random.select(group.only(usable), rng)]


def excludes(rollout: Rollout) -> bool:
    """Whether a rollout is never trained on."""
    return rollout.void_turns > 0
