"""The RL objectives that a recipe's `[algorithm]` table names: VERL's keys of their advantages and their loss.

The paper's is GRPO's. The others stand beside it for comparison; each is what VERL 0.9.1 implements under that name,
with the clip range of its own paper if that differs. Which rollouts are trained on is decided elsewhere, by
`rstar2.train.select`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import Field, model_validator

from rstar2.config import Strict

ObjectiveName = Literal["grpo", "dr-grpo", "gspo", "cispo", "rloo", "reinforce++"]
EQUAL_PROBLEMS = "rstar2_equal_problems"
"""The name of the advantages of `rstar2.train.verl.equal_problems` in VERL's registry."""
_ACTOR = "actor_rollout_ref.actor"


class AlgorithmSettings(Strict):
    """Advantages and loss, and the correction for rollouts sampled with probabilities that differ from the trainer's.

    Which rollouts they are computed from is decided by `select`.
    """

    objective: ObjectiveName = "grpo"
    """grpo: the paper's. dr-grpo: divides neither by the standard deviation nor by the length. gspo: one ratio per
    rollout. cispo: clips the ratio, not the gradient. rloo, reinforce++: their own baselines."""
    loss_weights: Literal["tokens", "problems"] = "tokens"
    """What weighs the same in a step's loss. tokens: every token, as VERL computes the loss of DAPO; a problem with
    longer rollouts weighs more. problems: every problem, as the paper's formula is written; its tokens share its
    weight. Only with `objective` = "grpo"."""
    correction: Literal["none", "token-tis"] = "none"
    """Correction for tokens to which engine and trainer assign different probabilities. token-tis: each token's loss is
    weighted by the ratio of the trainer's to the engine's, capped at `correction_limit` (truncated importance
    sampling)."""
    correction_limit: float = Field(2.0, gt=1)
    """The largest weight of a token under `correction`."""

    @model_validator(mode="after")
    def _weights_can_be_changed(self) -> AlgorithmSettings:
        if self.loss_weights == "problems" and self.objective != "grpo":
            raise ValueError(
                "algorithm.loss_weights = 'problems' needs GRPO's own loss (algorithm.objective = 'grpo'), not that of "
                f"{self.objective}"
            )
        return self


@dataclass(frozen=True)
class Objective:
    """What a name stands for."""

    keys: dict[str, Any] = field(default_factory=dict)
    """VERL's, on top of GRPO's."""
    clip: tuple[float, float] = (0.2, 0.28)
    """How far below and above 1 the ratio may go."""
    batch_baseline: bool = False
    """Whether the baseline is the whole batch, so that a group of equal rewards is worth training on."""


_GRPO: dict[str, Any] = {
    "algorithm.adv_estimator": "grpo",
    "algorithm.norm_adv_by_std_in_grpo": True,
    f"{_ACTOR}.policy_loss.loss_mode": "vanilla",
    f"{_ACTOR}.loss_agg_mode": "token-mean",
}
OBJECTIVES: dict[ObjectiveName, Objective] = {
    "grpo": Objective(),
    # arXiv 2503.20783. The length it divides by is set by `verl_keys`.
    "dr-grpo": Objective(
        {
            "algorithm.norm_adv_by_std_in_grpo": False,
            f"{_ACTOR}.loss_agg_mode": "seq-mean-token-sum-norm",
        }
    ),
    # arXiv 2507.18071, section 5.1
    "gspo": Objective(
        {f"{_ACTOR}.policy_loss.loss_mode": "gspo", f"{_ACTOR}.loss_agg_mode": "seq-mean-token-mean"},
        clip=(3e-4, 4e-4),
    ),
    # arXiv 2506.13585: no lower bound
    "cispo": Objective({f"{_ACTOR}.policy_loss.loss_mode": "cispo"}, clip=(10.0, 0.28)),
    "rloo": Objective({"algorithm.adv_estimator": "rloo"}),
    "reinforce++": Objective({"algorithm.adv_estimator": "reinforce_plus_plus"}, batch_baseline=True),
}


def verl_keys(settings: AlgorithmSettings, response_tokens: int) -> dict[str, Any]:
    """VERL's keys of an objective and its correction, but for the clip range; `response_tokens` is the budget."""
    keys = _GRPO | OBJECTIVES[settings.objective].keys
    if settings.loss_weights == "problems":
        keys["algorithm.adv_estimator"] = EQUAL_PROBLEMS
    if settings.objective == "dr-grpo":
        # Unset, VERL divides by the longest rollout of a micro-batch, which differs between them.
        keys[f"{_ACTOR}.loss_scale_factor"] = response_tokens
    if settings.correction == "token-tis":
        keys["algorithm.rollout_correction.rollout_is"] = "token"
        keys["algorithm.rollout_correction.rollout_is_threshold"] = settings.correction_limit
    return keys
