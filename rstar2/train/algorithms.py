"""The RL objectives and corrections that a recipe's `[algorithm]` table names, as VERL's keys.

The paper's objective is GRPO's. The others stand beside it: each is what VERL 0.9.1 implements under that name, with
the clip range of its own paper if that differs, but for those in `OWN`, which `rstar2.train.verl.objectives` adds.
Which rollouts are trained on is decided elsewhere, by `rstar2.train.select`.
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
OWN: dict[str, str] = {EQUAL_PROBLEMS: "grpo", MAXRL: "", PASS_K: "grpo_passk", GPG: "gpg", GMPO: "geo_mean"}
"""What we register with VERL, and what of VERL's it stands in for; nothing if VERL has no such objective."""
NOT_OFFERED: dict[str, str] = {
    "gae": "it needs a value model, which the recipe does not train",
    "remax": "it needs a greedy rollout of each problem, which VERL's V1 trainer does not make",
    "gdpo": "it needs several rewards of each rollout, and ours has one",
    "optimal_token_baseline": "it needs the sum of squared probabilities at each token, which VERL's V1 trainer "
    "does not hand to the advantages",
    "tir_optimal_token_baseline": "as optimal_token_baseline",
    "grpo_vectorized": "it computes what grpo computes",
    "rloo_vectorized": "it computes what rloo computes",
    "bypass_mode": "it skips the trainer's own log-probabilities, from which entropy and mismatch are measured",
}
"""VERL 0.9.1's advantages and losses that no objective uses, and why."""


@dataclass(frozen=True)
class Objective:
    """What a name stands for."""

    use: str
    """When to use it."""
    source: str
    """Where it was published."""
    keys: dict[str, Any] = field(default_factory=dict)
    """VERL's, on top of GRPO's."""
    clip: tuple[float, float] = (0.2, 0.28)
    """How far below and above 1 the ratio may go; for some objectives another bound, see `optim.clip_low`."""
    batch_baseline: bool = False
    """Whether the baseline is the whole batch, so that a group of equal rewards is worth training on."""
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
"""Every rollout weighs the same, and every token within it."""


def _dppo(divergence: str) -> dict[str, Any]:
    """VERL's keys of a DPPO. Source: its example of 0.9.1, `examples/dppo_trainer`, whose weights are hardly capped."""
    return {**_DR_GRPO, f"{_LOSS}.loss_mode": f"dppo_{divergence}", f"{_ACTOR}.clip_ratio_c": 10_000.0}


OBJECTIVES: dict[ObjectiveName, Objective] = {
    "grpo": Objective(
        "The paper's, and the one to start with: advantages (r − mean) / std of the group, clipped ratios, and a mean "
        "over all tokens of the step.",
        "arXiv 2402.03300; clip and mean of DAPO, arXiv 2503.14476",
    ),
    "dr-grpo": Objective(
        "When wrong rollouts grow longer while accuracy stays: neither the spread of a group's rewards nor a rollout's "
        "length scales its update.",
        "arXiv 2503.20783",
        _DR_GRPO,
        budget_norm=True,
    ),
    "maxrl": Objective(
        "When most problems are hard for the model, or pass@k counts: advantages (r − mean) / mean, so that a group "
        "weighs the more the fewer of its rollouts are right. For rewards that are not negative.",
        "arXiv 2602.02710, theorem 1 and algorithm 1",
        {"algorithm.adv_estimator": MAXRL},
    ),
    "rloo": Objective(
        "When nearly solved and nearly hopeless problems get too much weight: the baseline is the mean of the group's "
        "other rollouts, and nothing is divided by a standard deviation.",
        "arXiv 2402.14740",
        {"algorithm.adv_estimator": "rloo"},
    ),
    "opo": Objective(
        "When the lengths of a group's rollouts differ much: the baseline is a mean that weighs rollouts by their "
        "tokens.",
        "arXiv 2505.23585",
        {"algorithm.adv_estimator": "opo"},
    ),
    "reinforce++": Objective(
        "With few rollouts of many problems: the baseline and the scale are those of the whole step, so groups of "
        "equal rewards teach too.",
        "arXiv 2501.03262",
        {"algorithm.adv_estimator": "reinforce_plus_plus"},
        batch_baseline=True,
    ),
    "reinforce++-baseline": Objective(
        "When the standard deviation of small groups is too noisy: the baseline is the group's, the scale the whole "
        "step's.",
        "arXiv 2501.03262",
        {"algorithm.adv_estimator": "reinforce_plus_plus_baseline"},
    ),
    "pass-k": Objective(
        "When only the best of several samples counts: a group's best rollout alone is trained on, by how far it is "
        "ahead of the second. With rewards of 0 and 1 only groups with one right rollout teach.",
        "arXiv 2503.19595",
        {"algorithm.adv_estimator": PASS_K},
    ),
    "gpg": Objective(
        "To find out what ratios and clipping are worth: a plain policy gradient without either.",
        "arXiv 2504.02546",
        {"algorithm.adv_estimator": GPG, f"{_LOSS}.loss_mode": "gpg"},
    ),
    "gspo": Objective(
        "For mixtures of experts and long rollouts with several updates per step: one ratio per rollout, the geometric "
        "mean of its tokens', is clipped.",
        "arXiv 2507.18071, section 5.1",
        {f"{_LOSS}.loss_mode": "gspo", **_EACH_ROLLOUT},
        clip=(3e-4, 4e-4),
    ),
    "gmpo": Objective(
        "When single tokens with extreme ratios upset training with several updates per step: the clipped ratios of a "
        "rollout enter by their geometric mean.",
        "arXiv 2507.20673",
        {f"{_LOSS}.loss_mode": GMPO, **_EACH_ROLLOUT},
        clip=(0.4, 0.4),
    ),
    "sapo": Objective(
        "When hard clipping stops learning with several updates per step: a smooth gate takes the place of the clip.",
        "arXiv 2511.20347",
        {f"{_LOSS}.loss_mode": "sapo", **_EACH_ROLLOUT},
    ),
    "cispo": Objective(
        "With several updates per step, when rare but decisive tokens should go on learning: the ratio is clipped, "
        "from above only, and no token loses its gradient.",
        "arXiv 2506.13585",
        {f"{_LOSS}.loss_mode": "cispo"},
        clip=(10.0, 0.28),
    ),
    "dppo-tv": Objective(
        "With several updates per step, when ratios of rare tokens are noise: a token stops learning once its "
        "probability, not its ratio, has moved too far.",
        "arXiv 2602.04879",
        _dppo("tv"),
        clip=(0.15, 0.15),
        budget_norm=True,
    ),
    "dppo-kl": Objective(
        "As dppo-tv, with the KL divergence of the token's probability as the distance, which bounds rare tokens more.",
        "arXiv 2602.04879",
        _dppo("kl"),
        clip=(0.05, 0.05),
        budget_norm=True,
    ),
    "clip-cov": Objective(
        "When entropy collapses: a random few of the tokens that lower it most, by the covariance of log-probability "
        "and advantage, lose their gradient.",
        "arXiv 2505.22617",
        {f"{_LOSS}.loss_mode": "clip_cov"},
        clip=(1.0, 1.0),
    ),
    "kl-cov": Objective(
        "When entropy collapses with several updates per step: the tokens that lower it most are held back by a KL "
        "penalty; no ratio is clipped.",
        "arXiv 2505.22617",
        {
            f"{_LOSS}.loss_mode": "kl_cov",
            # Of VERL's recipe `entropy` for 7B; VERL's own defaults are those for 32B.
            f"{_LOSS}.kl_cov_ratio": 0.002,
            f"{_LOSS}.ppo_kl_coef": 1.0,
        },
    ),
    "dro": Objective(
        "With several updates per step or stale rollouts: a quadratic penalty on the log-ratio takes the place of the "
        "clip. Its strength of 0.1 is ours, as VERL has no default.",
        "arXiv 2405.19107",
        {f"{_LOSS}.loss_mode": "dro", f"{_LOSS}.dro_beta": 0.1},
    ),
}


@dataclass(frozen=True)
class Correction:
    """What a correction's name stands for. A ratio is the trainer's probability divided by the engine's."""

    use: str
    """What it does, and when to use it."""
    source: str
    limit: float = 2.0
    """The default of `algorithm.correction_limit`."""
    lower: float = 0.5
    """The default of `algorithm.correction_lower`."""
    weights: Literal["token", "sequence"] | None = None
    """What the losses are weighted by: each token's ratio, or the product of a rollout's."""
    two_sided: bool = False
    """Whether a weight outside the bounds is 0, instead of capped."""
    rejects: Literal["seq_sum_k1", "seq_mean_k1"] | None = None
    """VERL's statistic by which whole rollouts are left out: the product or the geometric mean of their ratios."""


_COLLAPSE = "https://richardli.xyz/rl-collapse"
CORRECTIONS: dict[CorrectionName, Correction] = {
    "none": Correction("While the *mismatch* stays below 0.01.", "–"),
    "token-tis": Correction(
        "The first to try: weights each token's loss by its ratio, capped at the limit.",
        "https://fengyao.notion.site/off-policy-rl",
        weights="token",
    ),
    "sequence-tis": Correction(
        "Weights a rollout's loss by the product of its ratios, capped. Without bias up to the cap, but noisy: for "
        "short rollouts.",
        _COLLAPSE,
        weights="sequence",
    ),
    "icepop": Correction(
        "For mixtures of experts, where few tokens differ much: weights as token-tis, but a token outside the bounds "
        "has weight 0.",
        "arXiv 2510.18855",
        limit=5.0,
        weights="token",
        two_sided=True,
    ),
    "sequence-rejection": Correction(
        "When a few rollouts upset training: leaves out rollouts whose product of ratios is outside the bounds, and "
        "weights the others by it. For short rollouts: in a long one the product is nearly always outside.",
        _COLLAPSE,
        weights="sequence",
        rejects="seq_sum_k1",
    ),
    "geometric-rejection": Correction(
        "The same for long rollouts: leaves out rollouts whose geometric mean of ratios is outside the bounds, and "
        "weights nothing.",
        _COLLAPSE,
        limit=1.001,
        lower=0.999,
        rejects="seq_mean_k1",
    ),
}


class AlgorithmSettings(Strict):
    """Advantages and loss, and the correction for rollouts sampled with probabilities that differ from the trainer's.

    Which rollouts they are computed from is decided by `select`.
    """

    objective: ObjectiveName = "grpo"
    """How advantages and loss are computed. The table below says when to use which; grpo is the paper's."""
    loss_weights: Literal["tokens", "problems"] = "tokens"
    """What weighs the same in a step's loss. tokens: every token, as VERL computes the loss of DAPO; a problem with
    longer rollouts weighs more. problems: every problem, as the paper's formula is written; its tokens share its
    weight. Only with `objective` = "grpo"."""
    correction: CorrectionName = "none"
    """Correction for rollouts to whose tokens engine and trainer assign different probabilities. The table below says
    when to use which."""
    correction_limit: float = Field(2.0, gt=1)
    """The largest ratio of the trainer's to the engine's probability under `correction`. By default 2, for icepop 5,
    for geometric-rejection 1.001."""
    correction_lower: float = Field(0.5, gt=0, lt=1)
    """The smallest such ratio under icepop, sequence-rejection and geometric-rejection. By default 0.5, for
    geometric-rejection 0.999."""

    @model_validator(mode="before")
    @classmethod
    def _own_bounds(cls, values: Any) -> Any:
        """Complete the bounds with those of the correction, so that a run's folder tells which it had."""
        name = values.get("correction", "none") if isinstance(values, dict) else None
        own = next((each for known, each in CORRECTIONS.items() if known == name), None)
        if own is None:
            return values
        return {"correction_limit": own.limit, "correction_lower": own.lower, **values}

    @model_validator(mode="after")
    def _weights_can_be_changed(self) -> AlgorithmSettings:
        if self.loss_weights == "problems" and self.objective != "grpo":
            raise ValueError(
                "algorithm.loss_weights = 'problems' needs GRPO's own loss (algorithm.objective = 'grpo'), not that of "
                f"{self.objective}"
            )
        return self


def verl_keys(settings: AlgorithmSettings, response_tokens: int) -> dict[str, Any]:
    """VERL's keys of an objective and its correction, but for the clip range; `response_tokens` is the budget."""
    objective = OBJECTIVES[settings.objective]
    keys = _GRPO | objective.keys
    if settings.loss_weights == "problems":
        keys["algorithm.adv_estimator"] = EQUAL_PROBLEMS
    if objective.budget_norm:
        # Unset, VERL divides by the longest rollout of a micro-batch, which differs between them.
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
        # VERL compares the inverse of our ratio.
        keys[f"{table}.rollout_rs_threshold"] = f"{1 / high}_{1 / low}"
    return keys
