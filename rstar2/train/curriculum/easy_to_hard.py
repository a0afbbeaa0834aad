"""Problems from easy to hard: the pass rate that is sought falls over the stage.

Source: the schedule of E2H Reasoner, arXiv 2506.06632, and the target difficulty of AdaRFT, arXiv 2504.05520. Both take
a problem's difficulty from labels of the data; here it is the posterior of its pass rate, as in
`rstar2.train.curriculum.posterior`.
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
    """As `posterior`, with a target that goes in a line from `easiest` in the first step to `hardest` in the last.

    Args:
        problems: the problems to choose from.
        easiest: The pass rate that is sought in the first step.
        hardest: The pass rate that is sought in the last step.
        unseen: As of `posterior`.
        explore: As of `posterior`.
        discount: As of `posterior`.

    Returns:
        `count` indices.
    """
    done = min(1.0, (problems.step - 1) / max(1, problems.steps - 1))
    target = easiest + done * (hardest - easiest)
    return posterior.choose(
        problems, count, rng, target=target, unseen=unseen, explore=explore, discount=discount
    )
