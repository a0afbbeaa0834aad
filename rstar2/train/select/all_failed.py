"""Rollouts at random, without those whose tool calls all failed.

Source: none; a simple rule to compare RoC with.
"""

from __future__ import annotations

import numpy as np

from rstar2.train.group import Group, Rollout
from rstar2.train.select import random


def select(group: Group, rng: np.random.Generator) -> list[int]:
    """G at random of the rollouts with no call, or with a call that did not fail.

    Args:
        group: the N rollouts of a problem.

    Returns:
        The indices of min(M, G) rollouts, if M of them are not excluded.
    """
    usable = [i for i, rollout in enumerate(group.rollouts) if not excludes(rollout)]
    return [usable[i] for i in random.select(group.only(usable), rng)]


def excludes(rollout: Rollout) -> bool:
    """Whether a rollout is never trained on."""
    return 0 < rollout.calls == rollout.failed_calls
