"""The RL objectives and corrections that a recipe's `[algorithm]` table can name, and VERL's keys for them.

The paper uses the objective of GRPO. Most objectives come from VERL 0.9.1. `rstar2.train.verl.objectives` registers
with VERL the objectives that `REGISTERED` lists. If the paper of an objective states a clip range, this clip range is
the default. `rstar2.train.select`, not this module, decides which rollouts are trained on.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import Field, model_validator

from rstar2.config import Strict

ObjectiveName = Literal[
    "grpo", "dr-grpo", "maxrl", "rloo", "opo", "reinforce++", "reinforce++-baseline", "pass-k", "gpg",
    "gspo", "gmpo", "sapo", "cispo", "dppo-tv", "dppo-kl", "clip-cov", "kl-cov", "dro",
]  # fmt: skip
CorrectionName = Literal[
    "none", "token-tis", "sequence-tis", "icepop", "sequence-rejection", "geometric-rejection"
]
_ACTOR = "actor_rollout_ref.actor"
_LOSS = f"{_ACTOR}.policy_loss"

EQUAL_PROBLEMS = "rstar2_equal_problems"
MAXRL = "rstar2_maxrl"
PASS_K = "rstar2_pass_k"
GPG = "rstar2_gpg"
GMPO = "rstar2_gmpo"
REGISTERED: dict[str, str] = {
    EQUAL_PROBLEMS: "grpo",
    MAXRL: "",
    PASS_K: "grpo_passk",
    GPG: "gpg",
    GMPO: "geo_mean",
}
"""Dict from each advantage or loss that rstar2 registers with VERL to the name of VERL's own implementation, or to an
empty text if VERL has none."""
NOT_OFFERED: dict[str, str] = {
    "gae": "it needs a value model, which the recipe does not train",
    "remax": "it needs a greedy rollout of each problem, which VERL's V1 trainer does not make",
    "gdpo": "it needs several rewards per rollout, and a recipe has one",
    "optimal_token_baseline": "it needs the sum of squared probabilities at each token, which VERL's V1 trainer "
    "does not pass to the computation of advantages",
    "tir_optimal_token_baseline": "the reason is the same as for optimal_token_baseline",
    "grpo_vectorized": "it computes what grpo computes",
    "rloo_vectorized": "it computes what rloo computes",
    "bypass_mode": "it skips the trainer's own log-probabilities, from which entropy and mismatch are measured",
}
"""Advantages and losses of VERL 0.9.1 that no objective uses, each with the reason why it is not used."""


@dataclass(frozen=True)
class Objective:
    """A method of computing advantages and loss, with VERL's keys for the method."""

    use: str
    """A text that says when to use the method, and what the method does."""
    source: str
    """The publication that describes the objective."""
    keys: dict[str, Any] = field(default_factory=dict)
    """VERL's keys that this objective sets. They override and extend the keys of GRPO."""
    clip: tuple[float, float] = (0.2, 0.28)
    """The default clip range: ratios are clipped to [1 - clip[0], 1 + clip[1]]. For some objectives, the two values
    have another meaning, see `optim.clip_low`."""
    batch_baseline: bool = False
    """Whether the baseline is computed over the whole batch. If so, groups with equal rewards give a gradient too."""
    budget_norm: bool = False
    """Whether a rollout's loss is divided by the token budget."""


_GRPO: dict[str, Any] = {
    "algorithm.adv_estimator": "grpo",
    "algorithm.norm_adv_by_std_in_grpo": True,
    f"{_LOSS}.loss_mode": "vanilla",
    f"{_ACTOR}.loss_agg_mode": "token-mean",
}
_DR_GRPO: dict[str, Any] = {
    "algorithm.norm_adv_by_std_in_grpo": False,
    f"{_ACTOR}.loss_agg_mode": "seq-mean-token-sum-norm",
}
_EACH_ROLLOUT: dict[str, Any] = {f"{_ACTOR}.loss_agg_mode": "seq-mean-token-mean"}
"""VERL's keys for a loss that weights all rollouts equally, and all tokens within a rollout equally."""


def _dppo(divergence: str) -> dict[str, Any]:
    """Returns VERL's keys for DPPO. The keys follow `examples/dppo_trainer` of VERL 0.9.1. Their `clip_ratio_c` is so
    large that it almost never clips a ratio."""
    return {**_DR_GRPO, f"{_LOSS}.loss_mode": f"dppo_{divergence}", f"{_ACTOR}.clip_ratio_c": 10_000.0}


OBJECTIVES: dict[ObjectiveName, Objective] = {
    "grpo": Objective(
        "Start with this one; the paper uses it. Advantages are (r − mean) / std of the group. Ratios are clipped, and "
        "the loss is the mean over all tokens of the step.",
        "arXiv 2402.03300; clip and mean of DAPO, arXiv 2503.14476",
    ),
    "dr-grpo": Objective(
        "Use it when wrong rollouts grow longer and accuracy does not rise. Advantages are not divided "
        "by the standard deviation of the group's rewards. A rollout's loss is divided by the token budget, not by the "
        "rollout's length.",
        "arXiv 2503.20783",
        _DR_GRPO,
        budget_norm=True,
    ),
    "maxrl": Objective(
        "Use it when most problems are hard for the model, or when pass@k is the goal. Advantages are "
        "(r − mean) / mean, so a group with fewer correct rollouts has a larger weight. Rewards must not be negative.",
        "arXiv 2602.02710, theorem 1 and algorithm 1",
        {"algorithm.adv_estimator": MAXRL},
    ),
    "rloo": Objective(
        "Use it when nearly solved and nearly hopeless problems get too much weight. The baseline is the mean reward "
        "of the group's other rollouts, and there is no division by the standard deviation.",
        "arXiv 2402.14740",
        {"algorithm.adv_estimator": "rloo"},
    ),
    "opo": Objective(
        "Use it when the rollouts of a group differ much in length. The baseline is a mean reward in which each "
        "rollout is weighted by its number of tokens.",
        "arXiv 2505.23585",
        {"algorithm.adv_estimator": "opo"},
    ),
    "reinforce++": Objective(
        "Use it with few rollouts per problem and many problems. The baseline and the scale are computed over the "
        "whole step, so groups with equal rewards are trained on too.",
        "arXiv 2501.03262",
        {"algorithm.adv_estimator": "reinforce_plus_plus"},
        batch_baseline=True,
    ),
    "reinforce++-baseline": Objective(
        "Use it when the standard deviation of small groups is too noisy. The baseline is computed over the group, and "
        "the scale over the whole step.",
        "arXiv 2501.03262",
        {"algorithm.adv_estimator": "reinforce_plus_plus_baseline"},
    ),
    "pass-k": Objective(
        "Use it when only the best of several samples matters. Only the best rollout of a group is trained on. Its "
        "advantage comes from the difference between the best and the second-best reward of the group. With rewards of "
        "0 and 1, only groups with exactly one correct rollout are trained on.",
        "arXiv 2503.19595",
        {"algorithm.adv_estimator": PASS_K},
    ),
    "gpg": Objective(
        "Use it to measure the effect of ratios and clipping. It is a plain policy gradient, which has neither ratios "
        "nor clipping.",
        "arXiv 2504.02546",
        {"algorithm.adv_estimator": GPG, f"{_LOSS}.loss_mode": "gpg"},
    ),
    "gspo": Objective(
        "Use it for mixtures of experts, and for long rollouts with several updates per step. A rollout has one ratio, "
        "the geometric mean of its tokens' ratios, and this ratio is clipped.",
        "arXiv 2507.18071, section 5.1",
        {f"{_LOSS}.loss_mode": "gspo", **_EACH_ROLLOUT},
        clip=(3e-4, 4e-4),
    ),
    "gmpo": Objective(
        "Use it when single tokens with extreme ratios disturb training with several updates per step. The loss uses "
        "the geometric mean of a rollout's clipped ratios.",
        "arXiv 2507.20673",
        {f"{_LOSS}.loss_mode": GMPO, **_EACH_ROLLOUT},
        clip=(0.4, 0.4),
    ),
    "sapo": Objective(
        "Use it with several updates per step, when a hard clip removes too much of the gradient. A smooth gate "
        "replaces the clip.",
        "arXiv 2511.20347",
        {f"{_LOSS}.loss_mode": "sapo", **_EACH_ROLLOUT},
    ),
    "cispo": Objective(
        "Use it with several updates per step, when rare but decisive tokens should keep their gradient. The ratio is "
        "clipped only from above, and no token loses its gradient.",
        "arXiv 2506.13585",
        {f"{_LOSS}.loss_mode": "cispo"},
        clip=(10.0, 0.28),
    ),
    "dppo-tv": Objective(
        "Use it with several updates per step, when the ratios of rare tokens are noisy. A token loses its gradient "
        "when its probability, not its ratio, has changed too much.",
        "arXiv 2602.04879",
        _dppo("tv"),
        clip=(0.15, 0.15),
        budget_norm=True,
    ),
    "dppo-kl": Objective(
        "Use it in the same cases as dppo-tv. The change of a token's probability is measured as KL "
        "divergence, which limits rare tokens more strictly.",
        "arXiv 2602.04879",
        _dppo("kl"),
        clip=(0.05, 0.05),
        budget_norm=True,
    ),
    "clip-cov": Objective(
        "Use it when entropy collapses. The tokens that lower entropy most are the tokens with the highest covariance "
        "of log-probability and advantage. A few of these tokens, drawn at random, lose their gradient.",
        "arXiv 2505.22617",
        {f"{_LOSS}.loss_mode": "clip_cov"},
        clip=(1.0, 1.0),
    ),
    "kl-cov": Objective(
        "Use it when entropy collapses with several updates per step. The tokens that lower entropy most get a KL "
        "penalty, and no ratio is clipped.",
        "arXiv 2505.22617",
        {
            f"{_LOSS}.loss_mode": "kl_cov",
            # These are the values for 7B from VERL's recipe `entropy`. VERL's defaults are those for 32B.
            f"{_LOSS}.kl_cov_ratio": 0.002,
            f"{_LOSS}.ppo_kl_coef": 1.0,
        },
    ),
    "dro": Objective(
        "Use it with several updates per step, or with rollouts from older weights. It replaces the clip with a "
        "quadratic penalty on the log-ratio. The strength of 0.1 is rstar2's choice, because VERL has no default.",
        "arXiv 2405.19107",
        {f"{_LOSS}.loss_mode": "dro", f"{_LOSS}.dro_beta": 0.1},
    ),
}


@dataclass(frozen=True)
class Correction:
    """A correction of the loss. In a correction, a ratio is the trainer's probability of a token, divided by the
    engine's probability of the token."""

    use: str
    """A text that says when to use the correction, and what the correction does."""
    source: str
    limit: float = 2.0
    """The default value of `algorithm.correction_limit` for this correction."""
    lower: float = 0.5
    """The default value of `algorithm.correction_lower` for this correction."""
    weights: Literal["token", "sequence"] | None = None
    """The factor by which the correction multiplies a token's loss: the token's ratio (token), or the product of all
    ratios of the token's rollout (sequence). If None, the correction leaves the loss as it is."""
    two_sided: bool = False
    """If True, a factor (`weights`) outside the correction's bounds is set to 0. If False, a factor above the upper
    bound is set to the upper bound."""
    rejects: Literal["seq_sum_k1", "seq_mean_k1"] | None = None
    """VERL's name for the statistic that decides which rollouts are left out: the product of a rollout's ratios
    (seq_sum_k1) or the geometric mean of the ratios (seq_mean_k1). If None, no rollout is left out."""


_COLLAPSE = "https://richardli.xyz/rl-collapse"
CORRECTIONS: dict[CorrectionName, Correction] = {
    "none": Correction("Use no correction while the *mismatch* stays below 0.01.", "–"),
    "token-tis": Correction(
        "Try this one first. The loss of each token is weighted by its ratio, which is capped at the limit.",
        "https://fengyao.notion.site/off-policy-rl",
        weights="token",
    ),
    "sequence-tis": Correction(
        "Use it for short rollouts. The loss of a rollout is weighted by the product of its ratios, which is capped. "
        "A weight below the cap adds no bias, but the weights are noisy.",
        _COLLAPSE,
        weights="sequence",
    ),
    "icepop": Correction(
        "Use it for mixtures of experts, in which a few tokens have extreme ratios. The weights are those of "
        "token-tis, but a token outside the bounds gets weight 0.",
        "arXiv 2510.18855",
        limit=5.0,
        weights="token",
        two_sided=True,
    ),
    "sequence-rejection": Correction(
        "Use it for short rollouts, when a few of them disturb training. Rollouts whose product of ratios is outside "
        "the bounds are left out, and the loss of every other rollout is weighted by its product. In long rollouts the "
        "product is nearly always outside the bounds.",
        _COLLAPSE,
        weights="sequence",
        rejects="seq_sum_k1",
    ),
    "geometric-rejection": Correction(
        "Use it for long rollouts, when a few of them disturb training. Rollouts whose geometric mean of ratios is "
        "outside the bounds are left out. The loss of the other rollouts is not weighted.",
        _COLLAPSE,
        limit=1.001,
        lower=0.999,
        rejects="seq_mean_k1",
    ),
}


class AlgorithmSettings(Strict):
    """Settings for computing advantages and loss from the rollouts that `select` has chosen."""

    objective: ObjectiveName = "grpo"
    """The method that computes advantages and loss. The paper uses the objective grpo. The table of objectives says
    when to use another objective."""
    loss_weights: Literal["tokens", "problems"] = "tokens"
    """Whether tokens or problems have equal weights in the loss of a step. tokens: all tokens have the same weight, as
    in VERL's loss of DAPO, so a problem with longer rollouts has more weight. problems: all problems have the same
    weight, as in the paper's formula, and the tokens of a problem share its weight. `loss_weights` = "problems" works
    only with `objective` = "grpo"."""
    correction: CorrectionName = "none"
    """Correction for the difference between the engine's probabilities and the trainer's probabilities. The table of
    corrections says when to use which correction."""
    correction_limit: float = Field(2.0, gt=1)
    """Upper bound for the ratio of the trainer's probability to the engine's probability, used by `correction`. The
    default upper bound is 2 for most corrections, 5 for icepop, and 1.001 for geometric-rejection."""
    correction_lower: float = Field(0.5, gt=0, lt=1)
    """Lower bound for the ratio of the trainer's probability to the engine's probability, used by icepop,
    sequence-rejection and geometric-rejection. The default lower bound is 0.5 for icepop and sequence-rejection, and
    0.999 for geometric-rejection."""

    @model_validator(mode="before")
    @classmethod
    def _default_bounds(cls, values: Any) -> Any:
        """Fills in the correction's default bounds, so that a run's saved config contains the bounds."""
        name = values.get("correction", "none") if isinstance(values, dict) else None
        correction = next((each for known, each in CORRECTIONS.items() if known == name), None)
        if correction is None:
            return values
        return {"correction_limit": correction.limit, "correction_lower": correction.lower, **values}

    @model_validator(mode="after")
    def _weights_can_be_changed(self) -> AlgorithmSettings:
        if self.loss_weights == "problems" and self.objective != "grpo":
            raise ValueError(
                "algorithm.loss_weights = 'problems' works only with algorithm.objective = 'grpo', not with "
                f"'{self.objective}'"
            )
        return self


def verl_keys(settings: AlgorithmSettings, response_tokens: int) -> dict[str, Any]:
    """Returns VERL's keys for an objective and its correction, without the clip range.

    Args:
        response_tokens: the token budget of a rollout (`rollout.tokens`).
    """
    objective = OBJECTIVES[settings.objective]
    keys = _GRPO | objective.keys
    if settings.loss_weights == "problems":
        keys["algorithm.adv_estimator"] = EQUAL_PROBLEMS
    if objective.budget_norm:
        # Otherwise VERL divides by the longest rollout of each micro-batch, which differs between micro-batches.
        keys[f"{_ACTOR}.loss_scale_factor"] = response_tokens
    return keys | _correction_keys(settings)


def _correction_keys(settings: AlgorithmSettings) -> dict[str, Any]:
    correction, table = CORRECTIONS[settings.correction], "algorithm.rollout_correction"
    low, high = settings.correction_lower, settings.correction_limit
    keys: dict[str, Any] = {}
    if correction.weights is not None:
        keys[f"{table}.rollout_is"] = correction.weights
        keys[f"{table}.rollout_is_threshold"] = f"{low}_{high}" if correction.two_sided else high
    if correction.rejects is not None:
        keys[f"{table}.rollout_rs"] = correction.rejects
        # VERL's bounds are for the inverse of this ratio.
        keys[f"{table}.rollout_rs_threshold"] = f"{1 / high}_{1 / low}"
    return keys
