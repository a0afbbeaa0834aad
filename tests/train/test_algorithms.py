"""Tests of named objectives: VERL accepts their keys, and uses them in its computation."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from support.optional import needs
from support.train.verl_config import accepted

from rstar2.demo.recipe import demo_plan
from rstar2.errors import UserError
from rstar2.train.algorithms import (
    CORRECTIONS,
    EQUAL_PROBLEMS,
    NOT_OFFERED,
    OBJECTIVES,
    REGISTERED,
    AlgorithmSettings,
    CorrectionName,
    ObjectiveName,
    verl_keys,
)
from rstar2.train.command import stage_command
from rstar2.train.recipe import StageRecipe
from rstar2.train.recipe_files import shipped_recipes, stage_recipe
from rstar2.train.select import SelectSettings

NAMES = get_args(ObjectiveName)


def recipe_of(name: str, *changes: str) -> StageRecipe:
    return stage_recipe(1, None, [f"algorithm.objective={name}", *changes])


def test_every_name_stands_for_something() -> None:
    assert tuple(OBJECTIVES) == NAMES
    assert tuple(CORRECTIONS) == get_args(CorrectionName)


def test_the_default_is_the_papers() -> None:
    recipe = stage_recipe(1, None, [])
    assert (recipe.algorithm.objective, recipe.select.name) == ("grpo", "roc")
    assert recipe.clip == (0.2, 0.28)
    others = {"release": "release", "7b-8xh100": "release"}
    selections = {name: stage_recipe(1, None, [], name).select.name for name in shipped_recipes("stage")}
    assert selections == {name: others.get(name, "roc") for name in selections}
    assert {stage_recipe(1, name, []).select.name for name in shipped_recipes("profile")} == {"roc"}
    assert {each.select.name for each in demo_plan("demo", None, []).stages.values()} == {"roc"}


@pytest.mark.parametrize(("name_typed", "nearest"), [("dr_grpo", "dr-grpo"), ("reinforce", "reinforce++")])
def test_an_unknown_objective_is_refused_with_the_nearest_name(name_typed: str, nearest: str) -> None:
    with pytest.raises(UserError) as excinfo:
        recipe_of(name_typed)
    message = excinfo.value.message
    assert "algorithm.objective must be one of 'grpo', 'dr-grpo', 'maxrl'" in message
    assert message.endswith(f"not {name_typed!r}; did you mean {nearest}?")


def test_a_clip_range_that_the_recipe_names_is_kept_and_the_algorithms_own_is_the_default() -> None:
    assert recipe_of("gspo").clip == (3e-4, 4e-4)
    assert recipe_of("gspo", "optim.clip_high=0.001").clip == (3e-4, 0.001)
    assert recipe_of("cispo").clip[0] > 1, "a ratio has no lower bound"


@pytest.mark.slow
@needs("verl")
@pytest.mark.parametrize("name", NAMES)
def test_verl_accepts_every_objective(name: ObjectiveName, tmp_path: Path) -> None:
    recipe = recipe_of(name)
    config = accepted(stage_command(recipe, tmp_path / "stage1", tmp_path / "model").argv[3:])
    actor, algorithm = config.actor_rollout_ref.actor, config.algorithm
    assert (actor.clip_ratio_low, actor.clip_ratio_high) == recipe.clip
    from verl.trainer.ppo import core_algos

    from rstar2.train.verl import objectives  # noqa: F401  (registers its own, as in VERL's processes)

    assert core_algos.get_policy_loss_fn(actor.policy_loss.loss_mode)
    assert core_algos.get_adv_estimator_fn(algorithm.adv_estimator)
    assert algorithm.norm_adv_by_std_in_grpo == (name not in ("dr-grpo", "dppo-tv", "dppo-kl"))
    assert (actor.loss_scale_factor == recipe.rollout.tokens) == (
        actor.loss_agg_mode == "seq-mean-token-sum-norm"
    ), "VERL's own divisor differs between micro-batches"
    kwargs = config.trainer.v1.sampler.sampler_kwargs
    assert SelectSettings.model_validate(dict(kwargs.select)) == recipe.select
    assert kwargs.drop_equal_rewards == (name != "reinforce++")


@pytest.mark.slow
@needs("verl")
def test_every_objective_of_verls_has_a_name_or_a_reason_why_not() -> None:
    from verl.trainer.ppo import core_algos

    from rstar2.train.verl import objectives  # noqa: F401  (registers its own, as in VERL's processes)

    verls = {*core_algos.ADV_ESTIMATOR_REGISTRY, *core_algos.POLICY_LOSS_REGISTRY}
    used_keys = {
        key
        for name in NAMES
        for keys in [verl_keys(AlgorithmSettings(objective=name), 8192)]
        for key in (
            keys["algorithm.adv_estimator"],
            keys["actor_rollout_ref.actor.policy_loss.loss_mode"],
        )
    }
    assert used_keys <= verls
    assert verls == used_keys | {REGISTERED.get(name, name) for name in used_keys} - {""} | {
        EQUAL_PROBLEMS
    } | set(NOT_OFFERED)
    assert not NOT_OFFERED.keys() & used_keys


@pytest.mark.slow
@needs("verl")
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("moved", [0.0, 0.01])
def test_a_step_down_the_loss_makes_right_rollouts_likelier_and_wrong_ones_less_likely(
    name: str, moved: float, tmp_path: Path
) -> None:
    """Tests VERL's own loss before any update, and after an update in the wrong direction. No clip limits such an
    update."""
    import torch
    from verl.trainer.ppo.core_algos import get_policy_loss_fn
    from verl.utils.config import omega_conf_to_dataclass

    from rstar2.train.verl import objectives  # noqa: F401  (registers its own, as in VERL's processes)

    actor = accepted(
        stage_command(recipe_of(name), tmp_path / "stage1", tmp_path / "model").argv[3:]
    ).actor_rollout_ref.actor
    torch.manual_seed(7)
    log_prob = (-torch.rand(6, 40) - 0.1).requires_grad_()
    advantages = torch.tensor([1.0, 1.0, 0.5, -1.0, -0.5, -1.0])[:, None].expand(6, 40)
    mask = torch.ones(6, 40)
    mask[1, 25:] = 0
    config = omega_conf_to_dataclass(actor)
    old = log_prob.detach() + moved * advantages.sign()
    config.global_batch_info.update(
        dp_size=1,
        batch_num_tokens=int(mask.sum()),
        global_batch_size=6,
        loss_scale_factor=actor.loss_scale_factor,
    )
    loss, _metrics = get_policy_loss_fn(actor.policy_loss.loss_mode)(
        old_log_prob=old,
        log_prob=log_prob,
        advantages=advantages * mask,
        response_mask=mask,
        loss_agg_mode=actor.loss_agg_mode,
        config=config,
    )
    loss.backward()
    assert log_prob.grad is not None
    gradient = -log_prob.grad * advantages.sign()
    assert gradient.isfinite().all()
    assert (gradient >= 0).all()
    assert (gradient[mask == 0] == 0).all()
    assert (gradient > 0).sum() > 0.9 * mask.sum(), "only few tokens are left out"


@pytest.mark.slow
@needs("verl")
@pytest.mark.parametrize("name", get_args(CorrectionName))
def test_a_correction_does_to_ratios_what_its_name_says(name: CorrectionName, tmp_path: Path) -> None:
    """VERL computes the weights and the mask of rollouts with four tokens each. A ratio is the trainer's probability of
    a token, divided by the engine's."""
    import torch
    from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_and_rejection_mask

    recipe = recipe_of(
        "grpo",
        f"algorithm.correction={name}",
        "algorithm.correction_limit=3",
        "algorithm.correction_lower=0.4",
    )
    config = accepted(stage_command(recipe, tmp_path / "stage1", tmp_path / "model").argv[3:])
    keys = ("rollout_is", "rollout_is_threshold", "rollout_rs", "rollout_rs_threshold")
    options = {key: config.algorithm.rollout_correction[key] for key in keys}
    ratios = torch.tensor(
        [
            [1.0, 1.0, 1.0, 1.0],
            [8.0, 1.0, 0.25, 1.0],  # product 2, mean 1.19
            [2.0, 2.0, 2.0, 2.0],  # product 16, mean 2
            [0.5, 1.0, 1.0, 1.0],  # product 0.5, mean 0.84; the inverse bounds would reject this rollout
            [0.2, 0.2, 0.2, 0.2],  # product 0.0016, mean 0.2
        ]
    )
    trainer, mask = torch.full((5, 4), -1.0), torch.ones(5, 4)
    importance, response_mask, _ = compute_rollout_correction_and_rejection_mask(
        trainer, trainer - ratios.log(), mask, **options
    )
    weights = None if importance is None else importance.batch["rollout_is_weights"]
    capped = ratios.clamp(max=3)
    products = ratios.prod(-1, keepdim=True).expand(5, 4)
    expected = {
        "none": (None, [1, 1, 1, 1, 1]),
        "token-tis": (capped, [1, 1, 1, 1, 1]),
        "sequence-tis": (products.clamp(max=3), [1, 1, 1, 1, 1]),
        "icepop": (ratios.where((ratios >= 0.4) & (ratios <= 3), torch.tensor(0.0)), [1, 1, 1, 1, 1]),
        "sequence-rejection": (products.clamp(max=3), [1, 1, 0, 1, 0]),
        "geometric-rejection": (None, [1, 1, 1, 1, 0]),
    }[name]
    assert response_mask[:, 0].tolist() == expected[1]
    assert (weights is None) == (expected[0] is None)
    if weights is not None:
        assert weights.allclose(expected[0])


def test_a_corrections_bounds_are_its_own_unless_they_are_named() -> None:
    bounds = {
        name: (settings.correction_lower, settings.correction_limit)
        for name in get_args(CorrectionName)
        for settings in [recipe_of("grpo", f"algorithm.correction={name}").algorithm]
    }
    assert bounds == {name: (each.lower, each.limit) for name, each in CORRECTIONS.items()}
    assert bounds["icepop"] == (0.5, 5.0)
    assert bounds["geometric-rejection"] == (0.999, 1.001)
    algorithm = recipe_of("grpo", "algorithm.correction=icepop", "algorithm.correction_limit=4").algorithm
    assert (algorithm.correction_lower, algorithm.correction_limit) == (0.5, 4.0)
    for wrong in ("correction_limit=0.5", "correction_lower=1.5", "correction=ice-pop"):
        with pytest.raises(UserError, match=wrong.partition("=")[0]):
            recipe_of("grpo", f"algorithm.{wrong}")


def advantages_of(recipe: StageRecipe, tmp_path: Path, shorter: int = 0) -> list[float]:
    """Returns VERL's advantage of each rollout of two groups with rewards 1, 0, 0, 0 and 1, 1, 1, 0.

    Rollouts have three tokens. Rollouts of the second group have `shorter` fewer tokens.
    """
    import torch
    from verl import DataProto
    from verl.trainer.ppo.v1.utils import compute_advantage_for_multi_trajectories

    from rstar2.train.verl import objectives  # noqa: F401  (registers itself, as in VERL's processes)

    algorithm = accepted(stage_command(recipe, tmp_path / "stage1", tmp_path / "model").argv[3:]).algorithm
    rewards = torch.zeros(8, 3)
    rewards[[0, 4, 5, 6], 2] = 1.0
    mask = torch.ones(8, 3, dtype=torch.int64)
    mask[4:, 3 - shorter :] = 0
    tensors = {"token_level_rewards": rewards, "response_mask": mask}
    groups = np.array([*"aaaabbbb"], dtype=object)
    computed = compute_advantage_for_multi_trajectories(
        DataProto.from_dict(tensors, non_tensors={"uid": groups}),
        batch_keys=[f"{group}_{number}_0" for number, group in enumerate(groups)],
        adv_estimator=algorithm.adv_estimator,
        norm_adv_by_std_in_grpo=algorithm.norm_adv_by_std_in_grpo,
        config=algorithm,
    )
    return [round(value, 3) for value in computed.batch["advantages"][:, 0].tolist()]


@pytest.mark.slow
@needs("verl")
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        # Computed by hand: (r - mean) / std over the group, with the standard deviation of a sample.
        ("grpo", [1.5, -0.5, -0.5, -0.5, 0.5, 0.5, 0.5, -1.5]),
        ("dr-grpo", [0.75, -0.25, -0.25, -0.25, 0.25, 0.25, 0.25, -0.75]),
        # The mean of the group's other rollouts is subtracted.
        ("rloo", [1.0, -0.333, -0.333, -0.333, 0.333, 0.333, 0.333, -1.0]),
        # Over the batch: mean 0.5, and the standard deviation of 24 tokens.
        ("reinforce++", [0.979, -0.979, -0.979, -0.979, 0.979, 0.979, 0.979, -0.979]),
        # First the group's mean is subtracted. Then, over the batch: mean 0, and the standard deviation of 24 tokens.
        ("reinforce++-baseline", [1.696, -0.565, -0.565, -0.565, 0.565, 0.565, 0.565, -1.696]),
        # The group's mean, weighted by the rollouts' tokens, is subtracted. Here all rollouts have three tokens.
        ("opo", [0.75, -0.25, -0.25, -0.25, 0.25, 0.25, 0.25, -0.75]),
        # The group's mean is subtracted, and the result is divided by it. One right rollout of four weighs nine times
        # one of three.
        ("maxrl", [3.0, -1.0, -1.0, -1.0, 1 / 3, 1 / 3, 1 / 3, -1.0]),
        # Only the best rollout counts: its lead over the second best, divided by the standard deviation.
        ("pass-k", [2.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]),
        # The group's mean is subtracted. The result is multiplied by all rollouts / rollouts with a reward.
        ("gpg", [1.5, -0.5, -0.5, -0.5, 0.5, 0.5, 0.5, -1.5]),
    ],
)
def test_verl_computes_the_advantages_that_the_name_says(
    name: str, expected: list[float], tmp_path: Path
) -> None:
    assert advantages_of(recipe_of(name), tmp_path) == pytest.approx(expected, abs=2e-3)


@pytest.mark.slow
@needs("verl")
def test_maxrl_has_no_advantage_if_no_rollout_of_the_group_is_right() -> None:
    """A negative mean reward gives no advantage either, because better rollouts would then get negative advantages."""
    import torch

    from rstar2.train.verl.objectives import maxrl

    rewards = torch.tensor([0.0, 0.0, -1.0, 0.5, 1.0, 3.0, 0.0])[:, None]
    mask = torch.ones(7, 1)
    mask[6] = 0  # an empty rollout, which fills the batch up
    advantages, _ = maxrl(rewards, mask, np.array([*"aabbcc", "pad0"], dtype=object))
    assert advantages[:, 0].tolist() == [0, 0, 0, 0, -0.5, 0.5, 0]


@pytest.mark.slow
@needs("verl")
@pytest.mark.parametrize("name", ["gpg", "pass-k"])
def test_empty_rollouts_change_no_advantage(name: str, tmp_path: Path) -> None:
    """VERL pads a batch with empty rollouts. GPG's scale counts them, and pass@k refuses a single rollout."""
    import torch
    from verl.trainer.ppo.core_algos import get_adv_estimator_fn

    from rstar2.train.verl import objectives  # noqa: F401  (registers its own, as in VERL's processes)

    algorithm = accepted(
        stage_command(recipe_of(name), tmp_path / "stage1", tmp_path / "model").argv[3:]
    ).algorithm
    estimate = get_adv_estimator_fn(algorithm.adv_estimator)
    groups = np.array([*"aaaabbbb", "pad0123"], dtype=object)
    rewards, mask = torch.zeros(9, 3), torch.ones(9, 3)
    rewards[[0, 4, 5, 6], 2] = 1.0
    mask[8] = 0
    without, _ = estimate(rewards[:8], mask[:8], index=groups[:8], config=algorithm)
    filled, _ = estimate(rewards, mask, index=groups, config=algorithm)
    assert filled[:8].equal(without)
    assert not filled[8].any()
    assert without[0, 0] > 0


@pytest.mark.slow
@needs("verl")
def test_a_problem_weighs_what_another_does_however_long_its_rollouts_are(tmp_path: Path) -> None:
    """The groups have 12 and 4 tokens, 8 on average. So the longer group has the weight 8 / 12, and the other has 8 /
    4."""
    alike = advantages_of(recipe_of("grpo"), tmp_path, shorter=2)
    advantages_by_problem = advantages_of(
        recipe_of("grpo", "algorithm.loss_weights=problems"), tmp_path, shorter=2
    )
    weights = [2 / 3] * 4 + [2] * 4
    expected = [advantage * weight for advantage, weight in zip(alike, weights, strict=True)]
    assert advantages_by_problem == pytest.approx(expected, abs=2e-3)


@pytest.mark.parametrize("name", NAMES)
def test_problems_weigh_the_same_only_in_grpos_own_loss(name: str) -> None:
    if not OBJECTIVES[name].keys:
        recipe_of(name, "algorithm.loss_weights=problems")
        return
    with pytest.raises(UserError, match=r"works only with algorithm.objective = 'grpo'"):
        recipe_of(name, "algorithm.loss_weights=problems")


@needs("verl")
def test_without_a_correction_verl_weights_nothing() -> None:
    keys = verl_keys(AlgorithmSettings(), 8192)
    assert not [key for key in keys if "rollout_correction" in key]
