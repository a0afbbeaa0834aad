"""Selects from a group of rollouts, as the sampler does in training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rstar2.train.group import Rollout, gives_gradient
from rstar2.train.select import Selection, SelectSettings


def choose(
    name: str, rollouts: Sequence[Rollout], keep: int, seed: int | np.random.Generator = 0, **settings: Any
) -> list[int]:
    """Return the indices that a selection chooses."""
    selection = Selection(SelectSettings.model_validate({"name": name, **settings}))
    return selection.choose(rollouts, keep, np.random.default_rng(seed))


def trained(
    name: str, rollouts: Sequence[Rollout], keep: int, seed: int | np.random.Generator = 0, **settings: Any
) -> list[int]:
    """Return the indices of the rollouts that are trained on. The list is empty if the selected rollouts give no
    gradient."""
    selected = choose(name, rollouts, keep, seed, **settings)
    return selected if gives_gradient([rollouts[i] for i in selected], drop_equal_rewards=True) else []
