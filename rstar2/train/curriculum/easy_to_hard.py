"""A curriculum from easy to hard problems: the target pass rate falls over the stage.

Source: the schedule of E2H Reasoner, arXiv 2506.06632, and the target difficulty of AdaRFT, arXiv 2504.05520. E2H
Reasoner and AdaRFT take a problem's difficulty from labels in the data. easy_to_hard instead uses the posterior
of the problem's pass rate, as in `rstar2.train.curriculum.posterior`.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
from pydantic import Field

from rstar2.train.curriculum import posterior
from rstar2.train.outcomes import DISCOUNT, Discount, Problems

PassRate = Annotated[float, Field(gt=0, lt=1)]


def choose(
    problems: Problems,
    count: int,
    rng: np.random.Generator,
    *,
    easiest: PassRate = 0.8,
    hardest: PassRate = 0.2,
    unseen: posterior.Share = 0.5,
    explore: posterior.Share = 0.1,
    discount: Discount = DISCOUNT,
) -> list[int]:
    """Chooses problems in the same way as `posterior`, with a target that changes linearly over the steps of the stage.

    Args:
        problems: the problems to choose from.
        count: number of problems to choose.
        rng: the source of randomness.
        easiest: The target pass rate in the first step.
        hardest: The target pass rate in the last step.
        unseen: The same as `unseen` of the curriculum posterior.
        explore: The same as `explore` of the curriculum posterior.
        discount: The same as `discount` of the curriculum posterior.

    Returns:
        The indices of the `count` chosen problems.
    """
    done = min(1.0, (problems.step - 1) / max(1, problems.steps - 1))
    target = easiest + done * (hardest - easiest)
    return posterior.choose(
        problems, count, rng, target=target, unseen=unseen, explore=explore, discount=discount
    )
