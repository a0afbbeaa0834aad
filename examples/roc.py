"""Resampling on Correct (RoC) on a hand-written group: which of a problem's 2G rollouts the update uses.

RoC selects half of the wrong rollouts at random. It draws the rest of G from the correct rollouts, and those with
failed calls or a bad answer format less often. Run `python examples/roc.py`.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from rstar2 import Group, Rollout
from rstar2.train.group import gives_gradient
from rstar2.train.select import random, roc

CLEAN = Rollout(reward=1.0, calls=2, failed_calls=0, answer_blocks=1, turns=3)
MESSY = Rollout(reward=1.0, calls=4, failed_calls=3, answer_blocks=1, turns=5)
NO_CALL = Rollout(reward=1.0, calls=0, failed_calls=0, answer_blocks=1, turns=1)
WRONG = Rollout(reward=0.0, calls=1, failed_calls=0, answer_blocks=1, turns=2)

KINDS = {"clean": CLEAN, "3 of 4 calls failed": MESSY, "no call": NO_CALL, "wrong": WRONG}
NAMES = [name for name in KINDS for _ in range(2)]
GROUP = Group(tuple(KINDS[name] for name in NAMES), keep=4)
"""2G = 8 rollouts of one problem."""


def main() -> None:
    for name, rollout in KINDS.items():
        if rollout.reward > 0:
            print(f"{name}: p_total {roc.penalty(rollout):.2f}")

    for selection, select in (("roc", roc.select), ("random", random.select)):
        rng = np.random.default_rng(0)
        selected = Counter(NAMES[at] for _ in range(1000) for at in select(GROUP, rng))
        shares = ", ".join(f"{name} {selected[name] / 2000:.0%}" for name in KINDS)
        print(f"select {selection}: share of each kind that is selected: {shares}")

    # A group whose rewards are all equal gives no gradient, so it is dropped.
    print("all correct, trained on:", gives_gradient([CLEAN] * 4, drop_equal_rewards=True))


if __name__ == "__main__":
    main()
