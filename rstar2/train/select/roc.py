"""GRPO-RoC as published: wrong rollouts uniformly, correct ones in favour of those with few failures and one answer.

Source: arXiv 2508.20722, section on GRPO-RoC (resample on correct).
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
from pydantic import Field

from rstar2.train.group import Group, Rollout

NO_CALL_PENALTY = 0.5
"""p_err of a rollout without a tool call."""


def select(
    group: Group,
    rng: np.random.Generator,
    *,
    roc_error_ratio: bool = True,
    roc_answer_format: bool = True,
    penalty_floor: Annotated[float, Field(gt=0)] = 1e-3,
) -> list[int]:
    """The paper's RoC: half of the wrong rollouts uniformly, the rest of G from the correct ones by 1 / p_total.

    Wrong rollouts are drawn uniformly, so that every way of failing stays visible. In a group of other than 2G
    rollouts either kind may be short of its part; the other kind then fills the gap.

    Args:
        group: the N rollouts of a problem.
        roc_error_ratio: Whether failed calls count against a correct rollout.
        roc_answer_format: Whether missing or repeated answer blocks count against a correct rollout.
        penalty_floor: Minimum of p_total, so that the weight 1 / p_total of a faultless rollout is finite.

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
    """p_total = p_err + p_format, in [0, 2], of what the settings count."""
    return p_err(rollout) * roc_error_ratio + p_format(rollout) * roc_answer_format


def p_err(rollout: Rollout) -> float:
    """The share of failed calls, in [0, 1]; `NO_CALL_PENALTY` without a call."""
    return share_of_failed(rollout.failed_calls, rollout.calls)


def p_format(rollout: Rollout) -> float:
    """1 without an answer block, else the number of blocks above one per turn, in [0, 1]."""
    return surplus_blocks(rollout.answer_blocks, max(rollout.turns, 1))


def share_of_failed(failed: int, calls: int) -> float:
    """p_err by its counts."""
    return failed / calls if calls else NO_CALL_PENALTY


def surplus_blocks(blocks: int, turns: int) -> float:
    """p_format by its counts; 1 also if there are no turns to divide by."""
    return min(1.0, (blocks - 1) / turns) if blocks and turns else 1.0
