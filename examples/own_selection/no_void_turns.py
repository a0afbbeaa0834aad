"""A selection of your own: Resampling on Correct (RoC) among the rollouts without void turns.

A turn is void if it has neither a call that parses nor an answer.

Run `python no_void_turns.py` to see what it selects from an invented group.
"""

from __future__ import annotations

import numpy as np

from rstar2 import Group, Rollout
from rstar2.train.select import roc


def select(group: Group, rng: np.random.Generator, *, void_turns_allowed: int = 0) -> list[int]:
    """Return the rollouts to train on, as at most `group.keep` indices into `group.rollouts`.

    `void_turns_allowed` is a setting. A recipe sets it by `void_turns_allowed = 1` in its table `[select]`.
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
