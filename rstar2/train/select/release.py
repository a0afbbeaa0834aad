"""Resampling on Correct (RoC) as in the authors' released code. The released code ranks rollouts, whereas the paper
draws rollouts at random.

Source: github.com/microsoft/rStar, the down-sampling in the RL script.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
from pydantic import Field

from rstar2.train.group import Group, Rollout
from rstar2.train.select.roc import share_of_failed, surplus_blocks


def select(
    group: Group,
    rng: np.random.Generator,
    *,
    roc_error_ratio: bool = True,
    roc_answer_format: bool = True,
    min_zero_reward_trace_num: Annotated[int, Field(ge=0)] = 0,
    min_non_zero_reward_trace_num: Annotated[int, Field(ge=0)] = 0,
) -> list[int]:
    """Chooses the correct rollouts with the lowest p_total, and the first wrong rollouts of the group.

    The G chosen rollouts have the same shares of correct and of wrong rollouts as the group. The numbers of correct and
    of wrong rollouts are rounded, and a number below its minimum is raised to the minimum. If the numbers of correct
    and of wrong rollouts do not add up to G, the G rollouts with the lowest p_total are chosen, whatever their reward.
    The choice is not random. The settings have the same names as in the released code.

    Args:
        group: the N rollouts of a problem; G is `group.keep`.
        rng: not used.
        roc_error_ratio: Whether failed calls count against a correct rollout.
        roc_answer_format: Whether missing or repeated answer blocks count against a correct rollout.
        min_zero_reward_trace_num: Choose at least this many wrong rollouts, or all wrong rollouts if there are fewer.
        min_non_zero_reward_trace_num: Choose at least this many correct rollouts, or all correct rollouts if there are
            fewer.

    Returns:
        The indices of min(N, G) rollouts.
    """
    size, keep = len(group.rollouts), group.keep
    if size <= keep:
        return list(range(size))
    right: list[int] = np.flatnonzero(group.rewards > 0).tolist()
    wrong: list[int] = np.flatnonzero(group.rewards <= 0).tolist()

    def p_total(i: int) -> float:
        return penalty(group.rollouts[i], roc_error_ratio, roc_answer_format)

    n_wrong, n_right = (round(len(kind) * keep / size) for kind in (wrong, right))
    least_wrong = min(min_zero_reward_trace_num, len(wrong))
    least_right = min(min_non_zero_reward_trace_num, len(right))
    if n_wrong <= least_wrong:
        n_wrong, n_right = least_wrong, keep - least_wrong
    if n_right <= least_right:
        n_wrong, n_right = keep - least_right, least_right
    ranked = sorted(right, key=p_total)
    chosen = ranked[:n_right] + wrong[:n_wrong]
    if len(chosen) != keep:
        chosen = sorted(ranked + wrong, key=p_total)[:keep]
    return sorted(chosen)


def penalty(rollout: Rollout, roc_error_ratio: bool = True, roc_answer_format: bool = True) -> float:
    """Returns p_total, in [0, 2], as the released code calculates it.

    The released code calculates p_total from a rollout's text. The released code counts tool outputs in place of calls.
    In the text, a turn begins with `<|im_start|>assistant` and ends with `<|im_end|>`. The first turn of a rollout is
    not counted, because the turn's header is in the prompt. A turn that the token budget cut off is not counted.
    """
    p_err = share_of_failed(rollout.error_replies, rollout.replies)
    p_format = surplus_blocks(rollout.closed_blocks, rollout.later_turns_ended)
    return p_err * roc_error_ratio + p_format * roc_answer_format
