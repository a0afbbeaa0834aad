"""Tests that measurements of an earlier run replace the assumptions of an estimate."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from support.train.trainer_metrics import write_steps

from rstar2.errors import UserError
from rstar2.train.estimate.measured import assumptions_of, measured_assumptions
from rstar2.train.estimate.work import Assumptions
from rstar2.train.recipe import RolloutSettings
from rstar2.train.recipe_files import stage_recipe


def test_the_last_stage_that_has_steps_counts(tmp_path: Path) -> None:
    write_steps(tmp_path / "stage1", 10.0)
    write_steps(tmp_path / "stage2", 40.0, 50.0)
    (tmp_path / "stage3").mkdir()
    for folder in (tmp_path, tmp_path / "stage2"):
        assumed = measured_assumptions(folder)
        assert (assumed.mean_tokens, assumed.mean_prompt_tokens, assumed.calls_per_rollout) == (
            45.0,
            31.0,
            1.5,
        )
        assert (assumed.tokens_of_largest_step, assumed.trained_groups) == (50.0, pytest.approx(2 / 3))
    assert measured_assumptions(tmp_path / "stage1").mean_tokens == 10.0


def test_a_smaller_budget_cuts_what_was_longer(tmp_path: Path) -> None:
    write_steps(tmp_path / "stage1", 60.0)
    assumed = measured_assumptions(tmp_path)
    budgets = (RolloutSettings(tokens=tokens, prompt_tokens=24) for tokens in (160, 50))
    assert [(assumed.rollout_tokens(each), assumed.prompt_tokens(each)) for each in budgets] == [
        (60, 24),
        (50, 24),
    ]


def test_what_was_not_measured_is_assumed() -> None:
    steps = [{"rstar2/tokens": 40.0, "rstar2/calls": math.nan}, {"rstar2/tokens": math.nan}]
    assert assumptions_of(steps) == Assumptions(mean_tokens=40.0)


def test_the_share_of_rollouts_that_rounds_made_is_that_of_all_steps() -> None:
    steps = [{"rstar2/rollouts": 96.0, "rstar2/saved_rollouts": 32.0}, {"rstar2/rollouts": 64.0}]
    assert assumptions_of(steps).made_share == 0.75
    assert assumptions_of(steps[1:]).made_share == 1.0


def test_failed_calls_per_rollout_and_the_length_of_recoveries_are_measured() -> None:
    ways = ("error", "timeout", "memory", "output_limit", "refused", "parse_error", "unknown_tool")
    step = {"rstar2/calls": 2.0, "rstar2/calls/invalid_arguments": 0.05, "rstar2/calls/lost": 0.5}
    step |= {f"rstar2/calls/{way}": 0.0 for way in ways} | {"rstar2/calls/error": 0.2}
    metrics = {"rstar2/recover/rollouts": 9.0, "rstar2/recover/failed": 1.0, "rstar2/recover/tokens": 160.0}
    assumed = assumptions_of([step, {**step, **metrics}])
    assert assumed.failed_calls_per_rollout == pytest.approx(0.5)
    assert assumed.recovery_tokens == 20.0


def test_memory_follows_from_the_largest_step_and_replaced_groups_are_no_loss(tmp_path: Path) -> None:
    write_steps(tmp_path / "stage1", 40.0, 50.0)
    assumed = measured_assumptions(tmp_path)
    small = ["rollout.prompts=30", "rollout.rollouts=8", "groups.keep=4"]
    # 60 tokens in half of the groups are fewer than 50 tokens in two thirds.
    write_steps(tmp_path / "stage2", 60.0, 50.0)
    assert measured_assumptions(tmp_path).update(stage_recipe(1, "laptop", small)).mean_tokens == 31 + 50
    with_keep = assumed.update(stage_recipe(1, "laptop", small))
    assert (with_keep.rollouts, with_keep.mean_tokens) == (80, 31 + 50)
    with_refill = assumed.update(stage_recipe(1, "laptop", [*small, "groups.refill_batches=3"]))
    assert with_refill.rollouts == 120


def test_a_folder_without_a_step_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no training steps in"):
        measured_assumptions(tmp_path)
