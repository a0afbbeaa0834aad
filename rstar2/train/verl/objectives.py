"""Advantages and losses that VERL does not have, or that VERL computes over the wrong rollouts.

Importing this module registers the module's advantages and losses with VERL, under the names in
`rstar2.train.algorithms.REGISTERED`.
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
"""Prefix of the problem id of an empty rollout. VERL fills up a batch with empty rollouts. All other problem ids are
UUIDs."""


@register_adv_est(EQUAL_PROBLEMS)  # type: ignore[untyped-decorator]
def equal_problems(
    token_level_rewards: torch.Tensor,
    response_mask: torch.Tensor,
    index: Sequence[str],
    config: Any,
    **_: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Computes GRPO's advantages, weighted so that every problem of a step has the same weight in the loss.

    VERL's loss is a mean over all tokens of a step, so a problem whose rollouts have more tokens has more weight. In
    this function, each advantage is multiplied by the mean number of tokens per problem, and divided by the number of
    tokens of its own problem. With the weighted advantages, the loss is first averaged over the tokens of each problem,
    and then over the problems. Nothing else in the loss changes, because the clipped loss is proportional to the
    advantage.

    Args:
        token_level_rewards: rewards of shape (rollouts, tokens).
        response_mask: 1 for each token that the model wrote; shape (rollouts, tokens).
        index: the problem of each rollout. The mean number of tokens per problem does not include problems without
            tokens, such as those of empty rollouts.
        config: the table `algorithm` of VERL's config.

    Returns:
        The advantages, and the same tensor again as VERL's "returns". The advantages and the "returns" have the shape
        (rollouts, tokens).
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
    """Computes the advantages of maximum-likelihood reinforcement learning (MaxRL): (reward − mean) / mean.

    The mean is the mean reward of the rollout's group. With these advantages, the policy gradient estimates the
    gradient of a truncated series of log(pass rate). For a group of N rollouts, the series has N − 1 terms. Source:
    arXiv 2602.02710, theorem 1, with the control variate of algorithm 1.

    If the mean is 0 or negative, all advantages of the group are 0, because the formula is then meaningless.

    Args:
        token_level_rewards: rewards of shape (rollouts, tokens).
        response_mask: 1 for each token that the model wrote; shape (rollouts, tokens).
        index: the problem of each rollout.

    Returns:
        The advantages, and the same tensor again as VERL's "returns". The advantages and the "returns" have the shape
        (rollouts, tokens).
    """
    rewards = token_level_rewards.sum(-1)
    groups = torch.as_tensor(np.unique(index, return_inverse=True)[1], device=rewards.device)
    sums = torch.zeros(len(rewards), dtype=rewards.dtype, device=rewards.device).index_add(0, groups, rewards)
    means = (sums / torch.bincount(groups, minlength=len(rewards)).clamp(min=1))[groups]
    relative = torch.where(means > 0, rewards / means.where(means > 0, torch.ones_like(means)) - 1, 0.0)
    advantages = relative[:, None] * response_mask
    return advantages, advantages


def _of_real_rollouts(name: str) -> None:
    """Registers an advantage estimator that applies VERL's estimator only to real rollouts. It leaves out the empty
    rollouts that fill up a batch.

    VERL's `gpg` scales the advantages by the number of all rollouts, including empty rollouts. VERL's `grpo_passk`
    raises an error if a batch has one empty rollout, because the group of an empty rollout has only one member.
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
    """Computes VERL's loss of GMPO as a mean over all rollouts of the update.

    VERL's loss is a mean over the rollouts of each micro-batch, and the losses of an update's micro-batches are added
    up. With VERL's loss, a rollout would have more weight if its micro-batch had fewer rollouts.
    """
    loss, metrics = get_policy_loss_fn(REGISTERED[GMPO])(log_prob=log_prob, config=config, **more)
    whole = config.global_batch_info
    share: float = len(log_prob) * whole["dp_size"] / whole["global_batch_size"]
    return loss * share, metrics
