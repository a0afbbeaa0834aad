"""Objectives by name: VERL keys that VERL itself accepts and computes with."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from support.optional import needs
from support.train.verl_config import accepted

from rstar2.errors import UserError
from rstar2.train.algorithms import OBJECTIVES, AlgorithmSettings, ObjectiveName, verl_keys
from rstar2.train.command import stage_command
from rstar2.train.recipe import StageRecipe
from rstar2.train.recipe_files import stage_recipe
from rstar2.train.select import SelectSettings

NAMES = get_args(ObjectiveName)


def recipe_of(name: str, *changes: str) -> StageRecipe:
    return stage_recipe(1, None, [f"algorithm.objective={name}", *changes])


def test_every_name_stands_for_something() -> None:
    assert set(OBJECTIVES) == set(NAMES)


def test_the_default_is_the_papers() -> None:
    recipe = stage_recipe(1, None, [])
    assert (recipe.algorithm.objective, recipe.select.name) == ("grpo", "roc")
    assert recipe.clip == (0.2, 0.28)


@pytest.mark.parametrize(("typed", "nearest"), [("dr_grpo", "dr-grpo"), ("reinforce", "reinforce++")])
def test_an_unknown_objective_is_refused_with_the_nearest_name(typed: str, nearest: str) -> None:
    with pytest.raises(UserError) as refused:
        recipe_of(typed)
    message = refused.value.message
    assert "algorithm.objective must be one of 'grpo', 'dr-grpo', 'gspo'" in message
    assert message.endswith(f"not {typed!r}; did you mean {nearest}?")


def test_a_clip_range_that_the_recipe_names_is_kept_and_the_algorithms_own_is_the_default() -> None:
    assert recipe_of("gspo").clip == (3e-4, 4e-4)
    assert recipe_of("gspo", "optim.clip_high=0.001").clip == (3e-4, 0.001)
    assert recipe_of("cispo").clip[0] > 1, "no lower bound on a ratio"


@pytest.mark.slow
@needs("verl")
@pytest.mark.parametrize("name", NAMES)
def test_verl_accepts_every_objective_and_correction(name: str, tmp_path: Path) -> None:
    recipe = recipe_of(name, "algorithm.correction=token-tis", "algorithm.correction_limit=3")
    config = accepted(stage_command(recipe, tmp_path / "stage1", tmp_path / "model").argv[3:])
    actor, algorithm = config.actor_rollout_ref.actor, config.algorithm
    assert (actor.clip_ratio_low, actor.clip_ratio_high) == recipe.clip
    assert algorithm.rollout_correction.rollout_is == "token"
    assert algorithm.rollout_correction.rollout_is_threshold == 3
    from verl.trainer.ppo import core_algos

    assert core_algos.get_policy_loss_fn(actor.policy_loss.loss_mode)
    assert core_algos.get_adv_estimator_fn(algorithm.adv_estimator)
    assert (name in ("gspo", "cispo")) == (actor.policy_loss.loss_mode == name)
    assert algorithm.norm_adv_by_std_in_grpo == (name != "dr-grpo")
    kwargs = config.trainer.v1.sampler.sampler_kwargs
    assert SelectSettings.model_validate(dict(kwargs.select)) == recipe.select
    assert kwargs.drop_equal_rewards == (name != "reinforce++")


def advantages_of(recipe: StageRecipe, tmp_path: Path, shorter: int = 0) -> list[float]:
    """What VERL makes of rewards 1, 0, 0, 0 and 1, 1, 1, 0 of two groups under a recipe, one number a rollout.

    Rollouts have three tokens, those of the second group `shorter` fewer.
    """
    import torch
    from verl import DataProto
    from verl.trainer.ppo.v1.utils import compute_advantage_for_multi_trajectories

    from rstar2.train.verl import equal_problems  # noqa: F401  (registers itself, as in VERL's processes)

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
        # By hand: (r - mean) / std over the group, its standard deviation that of a sample.
        ("grpo", [1.5, -0.5, -0.5, -0.5, 0.5, 0.5, 0.5, -1.5]),
        ("dr-grpo", [0.75, -0.25, -0.25, -0.25, 0.25, 0.25, 0.25, -0.75]),
        # The mean of the group's others is taken off.
        ("rloo", [1.0, -0.333, -0.333, -0.333, 0.333, 0.333, 0.333, -1.0]),
        # Over the batch: mean 0.5, and the standard deviation of 24 tokens.
        ("reinforce++", [0.979, -0.979, -0.979, -0.979, 0.979, 0.979, 0.979, -0.979]),
    ],
)
def test_verl_computes_the_advantages_that_the_name_says(
    name: str, expected: list[float], tmp_path: Path
) -> None:
    assert advantages_of(recipe_of(name), tmp_path) == pytest.approx(expected, abs=2e-3)


@pytest.mark.slow
@needs("verl")
def test_a_problem_weighs_what_another_does_however_long_its_rollouts_are(tmp_path: Path) -> None:
    """By hand: 12 and 4 tokens, 8 on average, so the advantages of the longer group count 8 / 12, the others 8 / 4."""
    alike = advantages_of(recipe_of("grpo"), tmp_path, shorter=2)
    weighed = advantages_of(recipe_of("grpo", "algorithm.loss_weights=problems"), tmp_path, shorter=2)
    weights = [2 / 3] * 4 + [2] * 4
    expected = [advantage * weight for advantage, weight in zip(alike, weights, strict=True)]
    assert weighed == pytest.approx(expected, abs=2e-3)


@pytest.mark.parametrize("name", NAMES)
def test_problems_weigh_the_same_only_in_grpos_own_loss(name: str) -> None:
    if not OBJECTIVES[name].keys:
        recipe_of(name, "algorithm.loss_weights=problems")
        return
    with pytest.raises(UserError, match=r"needs GRPO's own loss \(algorithm.objective = 'grpo'\)"):
        recipe_of(name, "algorithm.loss_weights=problems")


@needs("verl")
def test_without_a_correction_verl_weights_nothing() -> None:
    keys = verl_keys(AlgorithmSettings(), 8192)
    assert not [key for key in keys if "rollout_correction" in key]
