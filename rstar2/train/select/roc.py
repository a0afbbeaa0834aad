"""Resampling on Correct (RoC), the selection of the paper's GRPO-RoC.

Wrong rollouts are drawn uniformly. Among the correct rollouts, those with few failed calls and one answer are drawn
more often. Source: arXiv 2508.20722, section on GRPO-RoC.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
from pydantic import Field

from rstar2.train.group import Group, Rollout

NO_CALL_PENALTY = 0.5
"""The value that p_err (the share of failed calls) has for a rollout without a tool call."""


def select(
    group: Group,
    rng: np.random.Generator,
    *,
    roc_error_ratio: bool = True,
    roc_answer_format: bool = True,
    penalty_floor: Annotated[float, Field(gt=0)] = 1e-3,
) -> list[int]:
    """Draws half of the wrong rollouts, and then correct rollouts until G rollouts are drawn. The weight of a correct
    rollout in the draw is 1 / p_total.

    Wrong rollouts are drawn uniformly, so that every kind of failure remains in the batch. If N is not 2 G, there may
    be too few correct rollouts to reach G. If there are too few correct rollouts, more wrong rollouts are drawn. If
    there are too few wrong rollouts, more correct rollouts are drawn.

    Args:
        group: the N rollouts of a problem; G is `group.keep`.
        rng: the source of randomness.
        roc_error_ratio: Whether failed calls count against a correct rollout.
        roc_answer_format: Whether missing or repeated answer blocks count against a correct rollout.
        penalty_floor: Minimum of p_total in the weights. The minimum keeps the weight 1 / p_total finite for a rollout
            without penalties.

    Returns:
        The indices of min(N, G) rollouts.
    """
    size, keep = len(group.rollouts), group.keep
    if size <= keep:
        return list(range(size))
    right, wrong = np.flatnonzero(group.rewards > 0), np.flatnonzero(group.rewards <= 0)
    n_wrong = min(max(len(wrong) // 2, keep - len(right)), keep)
    drawn: list[int] = rng.choice(wrong, size=n_wrong, replace=False).tolist() if n_wrong else []
    if n_right := keep - n_wrong:
        penalties = [penalty(group.rollouts[i], roc_error_ratio, roc_answer_format) for i in right]
        weights = 1.0 / np.maximum(penalties, penalty_floor)
        drawn += rng.choice(right, size=n_right, replace=False, p=weights / weights.sum()).tolist()
    return sorted(drawn)


def penalty(rollout: Rollout, roc_error_ratio: bool = True, roc_answer_format: bool = True) -> float:
    """Returns p_total, in [0, 2]: the sum of p_err and p_format, without the part that a setting switches off."""
    return p_err(rollout) * roc_error_ratio + p_format(rollout) * roc_answer_format


def p_err(rollout: Rollout) -> float:
    """Returns the share of failed calls, in [0, 1], or `NO_CALL_PENALTY` if the rollout has no call."""
    return share_of_failed(rollout.failed_calls, rollout.calls)


def p_format(rollout: Rollout) -> float:
    """Returns the number of answer blocks after the first one, divided by the number of turns, but at most 1. If the
    rollout has no answer block, p_format is 1."""
    return surplus_blocks(rollout.answer_blocks, max(rollout.turns, 1))


def share_of_failed(failed: int, calls: int) -> float:
    """Calculates p_err from the number of failed calls and the number of all calls."""
    return failed / calls if calls else NO_CALL_PENALTY


def surplus_blocks(blocks: int, turns: int) -> float:
    """Calculates p_format from the number of answer blocks and the number of turns. The result is 1 if there is no
    answer block or no turn."""
    return min(1.0, (blocks - 1) / turns) if blocks and turns else 1.0
