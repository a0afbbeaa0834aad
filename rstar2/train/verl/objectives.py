"""Advantages and losses that VERL lacks, or computes from the wrong rollouts; importing this registers them.

The names are those of `rstar2.train.algorithms.REGISTERED`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from verl.trainer.ppo.core_algos import (
    compute_grpo_outcome_advantage,
    get_adv_estimator_fn,
    get_policy_loss_fn,
    register_adv_est,
    register_policy_loss,
)

from rstar2.train.algorithms import EQUAL_PROBLEMS, GMPO, GPG, MAXRL, PASS_K, REGISTERED

PADDING = "pad"
"""What the problem's id begins with for the empty rollouts that VERL fills a batch up with; its own are uuids."""


@register_adv_est(EQUAL_PROBLEMS)  # type: ignore[untyped-decorator]
def equal_problems(
    token_level_rewards: torch.Tensor,
    response_mask: torch.Tensor,
    index: Sequence[str],
    config: Any,
    **_: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """GRPO's advantages, weighted so that every problem of a step weighs the same in the loss.

    VERL's loss is a mean over all tokens of a step, so a problem whose rollouts have more tokens weighs more.
    Advantages times (tokens of an average problem / tokens of the rollout's problem) turn it into the mean over
    problems of each problem's own mean over tokens. The clipped loss is proportional to the advantage, so nothing else
    changes.

    Args:
        index: each rollout's problem. Empty rollouts, which fill up a batch, count for none.

    Returns:
        The advantages, and the same as returns; both of shape (rollouts, tokens).
    """
    advantages, _returns = compute_grpo_outcome_advantage(
        token_level_rewards, response_mask, index, norm_adv_by_std_in_grpo=config.norm_adv_by_std_in_grpo
    )
    tokens: dict[str, float] = defaultdict(float)
    for problem, count in zip(index, response_mask.sum(-1).tolist(), strict=True):
        tokens[problem] += count
    counts = [count for count in tokens.values() if count]
    average = sum(counts) / max(1, len(counts))
    weights = torch.tensor([average / (tokens[problem] or 1.0) for problem in index])
    weighted = advantages * weights.to(advantages)[:, None]
    return weighted, weighted


@register_adv_est(MAXRL)  # type: ignore[untyped-decorator]
def maxrl(
    token_level_rewards: torch.Tensor, response_mask: torch.Tensor, index: Sequence[str], **_: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """The advantages of maximum-likelihood reinforcement learning: (r − mean) / mean of the rollout's group.

    With K right rollouts of N, the mean over the group of advantage times score is the mean score of the right ones
    less the mean score of all: an estimate of the gradient of log(pass rate), truncated at N − 1 terms (arXiv
    2602.02710, theorem 1, with the control variate of algorithm 1). A group without a right rollout has none, and
    neither has one whose mean reward is negative, for which the formula means nothing.

    Args:
        index: each rollout's problem.

    Returns:
        The advantages, and the same as returns; both of shape (rollouts, tokens).
    """
    rewards = token_level_rewards.sum(-1)
    groups = torch.as_tensor(np.unique(index, return_inverse=True)[1], device=rewards.device)
    sums = torch.zeros(len(rewards), dtype=rewards.dtype, device=rewards.device).index_add(0, groups, rewards)
    means = (sums / torch.bincount(groups, minlength=len(rewards)).clamp(min=1))[groups]
    relative = torch.where(means > 0, rewards / means.where(means > 0, torch.ones_like(means)) - 1, 0.0)
    advantages = relative[:, None] * response_mask
    return advantages, advantages


def _of_real_rollouts(name: str) -> None:
    """Register VERL's advantages so that they are computed without the empty rollouts that fill a batch up.

    VERL's `gpg` scales by the number of all rollouts, and its `grpo_passk` ends training if the empty rollouts are a
    group of one.
    """
    estimate = get_adv_estimator_fn(REGISTERED[name])

    @register_adv_est(name)  # type: ignore[untyped-decorator]
    def advantages_of_real(
        token_level_rewards: torch.Tensor,
        response_mask: torch.Tensor,
        index: Sequence[str],
        config: Any,
        **_: Any,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        real = np.array([not str(problem).startswith(PADDING) for problem in index])
        advantages = torch.zeros_like(token_level_rewards)
        advantages[real], _returns = estimate(
            token_level_rewards=token_level_rewards[real],
            response_mask=response_mask[real],
            index=np.asarray(index)[real],
            config=config,
        )
        return advantages, advantages


for _name in (PASS_K, GPG):
    _of_real_rollouts(_name)


@register_policy_loss(GMPO)  # type: ignore[untyped-decorator]
def gmpo(log_prob: torch.Tensor, config: Any, **more: Any) -> tuple[torch.Tensor, dict[str, Any]]:
    """VERL's loss of GMPO, as the mean over the rollouts of the update.

    VERL's own is a mean over each micro-batch, and an update is the sum of those: a rollout would weigh the more the
    fewer others are in its micro-batch.
    """
    loss, metrics = get_policy_loss_fn(REGISTERED[GMPO])(log_prob=log_prob, config=config, **more)
    whole = config.global_batch_info
    share: float = len(log_prob) * whole["dp_size"] / whole["global_batch_size"]
    return loss * share, metrics
