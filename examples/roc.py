"""GRPO-RoC on hand-written groups: which of a problem's 2G rollouts the update uses.

Half of the wrong rollouts are kept, at random. The rest of G is drawn from the correct ones; those with failed calls
or a bad answer format are drawn less often. Run `python examples/roc.py`.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from rstar2.train.roc import RocSettings, Rollout, gives_gradient, penalty, sample_down

CLEAN = Rollout(reward=1.0, calls=2, failed_calls=0, answer_blocks=1, turns=3)
MESSY = Rollout(reward=1.0, calls=4, failed_calls=3, answer_blocks=1, turns=5)
NO_CALL = Rollout(reward=1.0, calls=0, failed_calls=0, answer_blocks=1, turns=1)
WRONG = Rollout(reward=0.0, calls=1, failed_calls=0, answer_blocks=1, turns=2)

KINDS = {"clean": CLEAN, "3 of 4 calls failed": MESSY, "no call": NO_CALL, "wrong": WRONG}
GROUP = [(name, rollout) for name, rollout in KINDS.items() for _ in range(2)]
"""2G = 8 rollouts of one problem."""


def main() -> None:
    settings = RocSettings(down_sample_to_n=4)
    for name, rollout in KINDS.items():
        if rollout.reward > 0:
            print(f"{name}: p_total {penalty(rollout, settings):.2f}")

    for variant in ("paper", "off"):
        settings = RocSettings(down_sample_to_n=4, variant=variant)
        rng = np.random.default_rng(0)
        rollouts = [rollout for _, rollout in GROUP]
        kept = Counter(GROUP[at][0] for _ in range(1000) for at in sample_down(rollouts, settings, rng))
        shares = ", ".join(f"{name} {kept[name] / 2000:.0%}" for name in KINDS)
        print(f"variant {variant}: share of each kind that is kept: {shares}")

    # A group whose rewards are all equal gives no gradient, so it is dropped.
    settings = RocSettings(down_sample_to_n=4)
    print("all correct, trained on:", gives_gradient([CLEAN] * 4, settings))


if __name__ == "__main__":
    main()
