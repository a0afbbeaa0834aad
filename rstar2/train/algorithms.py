"""The RL algorithms that a recipe's `[algorithm]` table names: which rollouts are kept, and VERL's keys of the loss.

GRPO-RoC is the paper's. The others stand beside it for comparison; each is what VERL 0.9.1 implements under that name,
with the clip range of its own paper where that differs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import Field, model_validator

from rstar2.config import Strict
from rstar2.train.roc import RocSettings

AlgorithmName = Literal[
    "grpo-roc", "grpo", "dapo", "dr-grpo", "gspo", "cispo", "rloo", "reinforce++", "void-turn", "drop-all-failed",
]  # fmt: skip
DAPO_REFILLS = 3.0
"""How many times a step's problems DAPO may draw in addition, unless the recipe says so itself."""
EQUAL_PROBLEMS = "rstar2_equal_problems"
"""The name of the advantages of `rstar2.train.verl.equal_problems` in VERL's registry."""
_ACTOR = "actor_rollout_ref.actor"


class AlgorithmSettings(Strict):
    """The loss, and the correction for rollouts sampled with probabilities that differ from the trainer's."""

    name: AlgorithmName = "grpo-roc"
    """grpo-roc: the paper's algorithm, GRPO over the rollouts that `[roc]` selects. All others keep
    `roc.down_sample_to_n` at random. grpo: GRPO without RoC. dapo: groups without a signal are replaced. dr-grpo:
    divides neither by the standard deviation nor by the length. gspo: one ratio per rollout. cispo: clips the ratio,
    not the gradient. rloo, reinforce++: their own baselines. void-turn: GRPO without rollouts that have a turn with
    neither a call nor an answer (SimpleTIR). drop-all-failed: GRPO without rollouts whose calls all failed."""
    loss_weights: Literal["tokens", "problems"] = "tokens"
    """What weighs the same in a step's loss. tokens: every token, as VERL computes the loss of DAPO; a problem with
    longer rollouts weighs more. problems: every problem, as the paper's formula is written; its tokens share its
    weight."""
    correction: Literal["none", "token-tis"] = "none"
    """Correction for tokens to which engine and trainer assign different probabilities. token-tis: each token's loss is
    weighted by the ratio of the trainer's to the engine's, capped at `correction_limit` (truncated importance
    sampling)."""
    correction_limit: float = Field(2.0, gt=1)
    """The largest weight of a token under `correction`."""

    @model_validator(mode="after")
    def _weights_can_be_changed(self) -> AlgorithmSettings:
        if self.loss_weights == "problems" and ALGORITHMS[self.name].keys:
            able = ", ".join(name for name, algorithm in ALGORITHMS.items() if not algorithm.keys)
            raise ValueError(
                f"algorithm.loss_weights = 'problems' needs GRPO's own loss ({able}), not that of {self.name}"
            )
        return self


@dataclass(frozen=True)
class Algorithm:
    """What a name stands for."""

    keys: dict[str, Any] = field(default_factory=dict)
    """VERL's, on top of GRPO's."""
    clip: tuple[float, float] = (0.2, 0.28)
    """How far below and above 1 the ratio may go."""
    leave_out: Literal["none", "void-turn", "all-failed"] = "none"
    """Of `RocSettings`."""
    batch_baseline: bool = False
    """Whether the baseline is the whole batch, so that a group of equal rewards is worth training on."""


_GRPO: dict[str, Any] = {
    "algorithm.adv_estimator": "grpo",
    "algorithm.norm_adv_by_std_in_grpo": True,
    f"{_ACTOR}.policy_loss.loss_mode": "vanilla",
    f"{_ACTOR}.loss_agg_mode": "token-mean",
}
ALGORITHMS: dict[AlgorithmName, Algorithm] = {
    "grpo-roc": Algorithm(),
    "grpo": Algorithm(),
    # arXiv 2503.14476. The replacement of groups is the sampler's: VERL hands custom samplers no filter.
    "dapo": Algorithm(),
    # arXiv 2503.20783. The length it divides by is set by `verl_keys`.
    "dr-grpo": Algorithm(
        {
            "algorithm.norm_adv_by_std_in_grpo": False,
            f"{_ACTOR}.loss_agg_mode": "seq-mean-token-sum-norm",
        }
    ),
    # arXiv 2507.18071, section 5.1
    "gspo": Algorithm(
        {f"{_ACTOR}.policy_loss.loss_mode": "gspo", f"{_ACTOR}.loss_agg_mode": "seq-mean-token-mean"},
        clip=(3e-4, 4e-4),
    ),
    # arXiv 2506.13585: no lower bound
    "cispo": Algorithm({f"{_ACTOR}.policy_loss.loss_mode": "cispo"}, clip=(10.0, 0.28)),
    "rloo": Algorithm({"algorithm.adv_estimator": "rloo"}),
    "reinforce++": Algorithm({"algorithm.adv_estimator": "reinforce_plus_plus"}, batch_baseline=True),
    "void-turn": Algorithm(leave_out="void-turn"),
    "drop-all-failed": Algorithm(leave_out="all-failed"),
}


def verl_keys(settings: AlgorithmSettings, response_tokens: int) -> dict[str, Any]:
    """VERL's keys of an algorithm and its correction, but for the clip range; `response_tokens` is the budget."""
    keys = _GRPO | ALGORITHMS[settings.name].keys
    if settings.loss_weights == "problems":
        keys["algorithm.adv_estimator"] = EQUAL_PROBLEMS
    if settings.name == "dr-grpo":
        # Unset, VERL divides by the longest rollout of a micro-batch, which differs between them.
        keys[f"{_ACTOR}.loss_scale_factor"] = response_tokens
    if settings.correction == "token-tis":
        keys["algorithm.rollout_correction.rollout_is"] = "token"
        keys["algorithm.rollout_correction.rollout_is_threshold"] = settings.correction_limit
    return keys


def selection(settings: AlgorithmSettings, roc: RocSettings) -> RocSettings:
    """How groups are sampled down under an algorithm: RoC's settings with what the algorithm decides itself."""
    if settings.name == "grpo-roc":
        return roc
    algorithm = ALGORITHMS[settings.name]
    changed: dict[str, Any] = {"variant": "off"}
    if algorithm.leave_out != "none":
        changed["leave_out"] = algorithm.leave_out
    if algorithm.batch_baseline:
        changed["reject_equal_reward"] = False
    if settings.name == "dapo":
        changed |= {"reject_equal_reward": True, "refill_batches": roc.refill_batches or DAPO_REFILLS}
    return roc.model_copy(update=changed)
