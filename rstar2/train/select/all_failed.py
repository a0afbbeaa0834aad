"""A selection that draws rollouts at random, but never a rollout whose tool calls all failed.

The selection has no published source. The selection is a simple rule with which Resampling on Correct (RoC) can be
compared.
"""

from __future__ import annotations

import numpy as np

from rstar2.train.group import Group, Rollout
from rstar2.train.select import random


def select(group: Group, rng: np.random.Generator) -> list[int]:
    """Draws G rollouts at random from the rollouts that have no call or at least one call that did not fail.

    Args:
        group: the N rollouts of a problem; G is `group.keep`.
        rng: the source of randomness.

    Returns:
        The indices of min(M, G) rollouts, where M is the number of rollouts that are not excluded.
    """
    usable = [i for i, rollout in enumerate(group.rollouts) if not excludes(rollout)]
    return [usable[i] for i in random.select(group.only(usable), rng)]


def excludes(rollout: Rollout) -> bool:
    """Whether a rollout has tool calls and all of them failed."""
    return 0 < rollout.calls == rollout.failed_calls
