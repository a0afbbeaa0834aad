"""A selection of your own: GRPO-RoC among the rollouts in which every turn has a call that parses or an answer.

Run `python no_void_turns.py` to see what it selects from a group that is made up.
"""

from __future__ import annotations

import numpy as np

from rstar2 import Group, Rollout
from rstar2.train.select import roc


def select(group: Group, rng: np.random.Generator, *, void_turns_allowed: int = 0) -> list[int]:
    """Indices into `group.rollouts` of the rollouts to train on, at most `group.keep`.

    `void_turns_allowed` is a setting: a recipe writes `void_turns_allowed = 1` into its table `[select]`.
    """
    usable = [i for i, each in enumerate(group.rollouts) if each.void_turns <= void_turns_allowed]
    return [usable[i] for i in roc.select(group.only(usable), rng)]


def main() -> None:
    clean = Rollout(reward=1.0, calls=2, failed_calls=0, answer_blocks=1, turns=3)
    void = Rollout(reward=1.0, calls=2, failed_calls=0, answer_blocks=1, turns=3, void_turns=1)
    wrong = Rollout(reward=0.0, calls=1, failed_calls=0, answer_blocks=1, turns=2)
    group = Group((clean, void, wrong, void, wrong, clean, void, clean), keep=4)
    for allowed in (0, 1):
        chosen = select(group, np.random.default_rng(0), void_turns_allowed=allowed)
        print(f"void turns allowed {allowed}: trained on {chosen}")


if __name__ == "__main__":
    main()
