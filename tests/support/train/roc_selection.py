"""What a group of rollouts comes to in training: the two questions that the sampler asks of it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rstar2.train.roc import RocSettings, Rollout, gives_gradient, sample_down


def select(group: Sequence[Rollout], settings: RocSettings, rng: np.random.Generator) -> list[int]:
    """The indices of the rollouts to keep, in order: `sample_down`'s, or none where those give no gradient."""
    kept = sample_down(group, settings, rng)
    return kept if gives_gradient([group[i] for i in kept], settings) else []
