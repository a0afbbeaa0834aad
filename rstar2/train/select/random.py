"""A selection that draws rollouts at random, whatever their rewards and failures.

Source: plain GRPO (arXiv 2402.03300), which trains on all rollouts that it samples. The selection `random` also keeps
all rollouts if `rollout.rollouts` equals `groups.keep`.
"""

from __future__ import annotations

import numpy as np

from rstar2.train.group import Group


def select(group: Group, rng: np.random.Generator) -> list[int]:
    """Draws G rollouts uniformly without replacement.

    Args:
        group: the N rollouts of a problem; G is `group.keep`.
        rng: the source of randomness.

    Returns:
        The indices of min(N, G) rollouts.
    """
    size = len(group.rollouts)
    if size <= group.keep:
        return list(range(size))
    drawn: list[int] = rng.choice(size, size=group.keep, replace=False).tolist()
    return sorted(drawn)
