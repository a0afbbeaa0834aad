"""The advantages of `algorithm.loss_weights = "problems"`, by which every problem of a step weighs the same.

VERL's loss is a mean over all tokens of a step, so a problem whose rollouts have more tokens weighs more. Advantages
times (tokens of an average problem / tokens of the rollout's problem) turn it into the mean over problems of each
problem's own mean over tokens. The clipped loss is proportional to the advantage, so nothing else changes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch
from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage, register_adv_est

from rstar2.train.algorithms import EQUAL_PROBLEMS


@register_adv_est(EQUAL_PROBLEMS)  # type: ignore[untyped-decorator]
def compute_advantages(
    token_level_rewards: torch.Tensor,
    response_mask: torch.Tensor,
    index: Sequence[str],
    config: Any,
    **_: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """GRPO's advantages, weighted, and the same as returns; both of shape (rollouts, tokens).

    Args:
        index: each rollout's problem. Empty rollouts, which fill up a batch, count for none.
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
