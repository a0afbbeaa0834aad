"""Tests of time limits that are too short for the estimated duration of what they limit.

Each such limit gives one warning, and following its advice removes the warning.
"""

from __future__ import annotations

import re
from typing import Any

import pytest
from support.model_configs import PUBLISHED
from support.optional import needs

from rstar2.errors import UserError
from rstar2.model_shape import shape_of
from rstar2.train.estimate.limits import SilentParts
from rstar2.train.estimate.report import estimate_run, sft_saving
from rstar2.train.estimate.work import Assumptions, update_flop
from rstar2.train.recipe_files import sft_recipe, stage_recipe, stage_recipes
from rstar2.train.trainer.verl_limits import BATCHED_TOKENS, QUEUED_SAMPLES, STICKY_REQUESTS

PROFILES = ("1xh200", "8xh100", "64xh100", "64xmi300x")
CHANGE = re.compile(r"set ((?:hardware|judge)\.\w+=[\w.]+)", re.IGNORECASE)


def warnings_of(
    profile: str, *changes: str, model: str = "Qwen3-14B", stages: tuple[int, ...] = (1,), **options: Any
) -> list[str]:
    shape = shape_of({**PUBLISHED[model][0], "max_position_embeddings": 32_768}, model)
    warnings = estimate_run(shape, stage_recipes(list(stages), profile, list(changes)), **options).warnings
    about_hours = ("the training problems are sampled", "the run takes about")
    return [warning for warning in warnings if not any(each in warning for each in about_hours)]


@pytest.mark.parametrize("profile", PROFILES)
def test_the_limits_of_every_profile_are_longer_than_what_they_bound(profile: str) -> None:
    model = "Qwen3-4B" if profile == "1xh200" else "Qwen3-14B"
    assert warnings_of(profile, model=model, stages=(1, 2, 3)) == []


def test_an_update_of_hours_is_no_silence() -> None:
    """8xh100's update takes 4,889 s in stages 2 and 3, more than `hung_after_s`; each micro-batch is a sign of life."""
    shape = shape_of(PUBLISHED["Qwen3-14B"][0], "Qwen3-14B")
    stage = estimate_run(shape, stage_recipes([2], "8xh100", [])).stages[2]
    assert stage.step.update_s > 3600
    assert stage.longest_silence.micro_batch == pytest.approx(16_384 / stage.step.update_tokens_per_s)
    assert stage.longest_silence == SilentParts(
        start=pytest.approx(600 + (stage.disk.checkpoint + 2 * shape.parameters) / 1e9),
        rollout=pytest.approx(12_288 * stage.step.token_s + 600),
        micro_batch=pytest.approx(13.05, abs=0.1),
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["hardware.hung_after_s=700", "hardware.nccl_timeout_s=600"], "while the judge is unavailable may take 870 s"),
        (["hardware.worker_start_s=3600"], "starting the trainer may take 3,807 s without a sign of life"),
        (["judge.wait_s=3500"], "one rollout of full length while the judge is unavailable may take"),
        (["judge.wait_s=5000", "hardware.hung_after_s=9000"], "judge.wait_s = 5,000 has no effect beyond 3,600 s"),
        (["hardware.nccl_timeout_s=60"], "ranks may wait 177 s for one another"),
        (["hardware.nccl_timeout_s=3600"], "hardware.nccl_timeout_s = 3,600 is not below hardware.hung_after_s"),
        (["hardware.export_timeout_s=100"], "the conversion of a checkpoint to a model takes about 118 s"),
        (["hardware.router=verl"], "VERL's router remembers the engine of only the last 10,000"),
    ],
)  # fmt: skip
def test_a_limit_that_is_too_short_is_told_and_its_advice_ends_it(changes: list[str], message: str) -> None:
    [warning] = warnings_of("8xh100", *changes)
    assert message in warning
    advice = CHANGE.search(warning)
    assert advice is not None, warning
    assert warnings_of("8xh100", *changes, advice[1]) == []


@pytest.mark.parametrize(
    ("changes", "message", "better"),
    [
        (
            ["checkpoint.every_minutes=1", "rollout.prompts=4"],
            "saving checkpoints takes",
            ["checkpoint.every_minutes=30"],
        ),
        (["rollout.tokens=32000"], "is more than the model's context of 32,768 tokens", ["rollout.tokens=30720"]),
        (["steps=10"], "optim.warmup_steps = 20 is more than steps = 10", ["optim.warmup_steps=2"]),
    ],
)  # fmt: skip
def test_a_count_that_does_not_fit_is_told(changes: list[str], message: str, better: list[str]) -> None:
    long = ["hardware.update_tokens=40000", "hardware.log_prob_tokens=40000"]
    # An update that large does not fit an H100.
    first = [warning for warning in warnings_of("64xmi300x", *long, *changes) if message in warning]
    assert len(first) == 1
    assert [
        warning for warning in warnings_of("64xmi300x", *long, *changes, *better) if message in warning
    ] == []


def test_a_judge_that_cannot_run_all_calls_in_time_is_told() -> None:
    """The mean number of calls keeps few workers busy, but all rollouts in flight may call at once."""
    [warning] = warnings_of("64xh100", "judge.wait_s=20", judge_workers=26)
    assert "4,096 rollouts are in flight" in warning
    assert "the last call waits 47 s for one of the 26 workers" in warning
    assert "at least 62 workers" in warning
    assert warnings_of("64xh100", "judge.wait_s=20", judge_workers=62) == []


def test_a_kill_costs_the_steps_since_the_last_checkpoint() -> None:
    shape = shape_of(PUBLISHED["Qwen3-14B"][0], "Qwen3-14B")

    def stage_estimate(profile: str, *changes: str) -> Any:
        return estimate_run(shape, stage_recipes([1], profile, list(changes))).stages[1]

    slow, fast = stage_estimate("8xh100").checkpoint, stage_estimate("64xh100")
    assert slow.save_s == pytest.approx(177, abs=1)
    assert slow.steps_between == 1, "a step takes more than three hours"
    assert slow.lost_s == slow.signal_before_s == pytest.approx(slow.step_s + slow.save_s)
    assert fast.checkpoint.steps_between == 2, "a step takes 25 minutes"
    assert fast.checkpoint.lost_s == pytest.approx(2 * fast.step.seconds + fast.checkpoint.save_s)
    assert stage_estimate("64xh100", "checkpoint.every_minutes=1000").checkpoint.steps_between == 10
    queued = stage_estimate("64xh100", "mode=colocate_async", "asynchronous.batches_ahead=2")
    assert queued.checkpoint.save_s == pytest.approx((queued.disk.checkpoint + queued.disk.queue) / 1e9)


def test_what_a_kill_of_sft_costs() -> None:
    shape, recipe = shape_of(PUBLISHED["Qwen3-14B"][0], "Qwen3-14B"), sft_recipe("8xh100", [])
    saving = sft_saving(shape, recipe, [1000, 3000])
    # The speed is a fifth of 989 TFLOP/s on each of 8 GPUs. A token attends to 1,000 others on average.
    flop = update_flop(shape, 1000, checkpointing=True, log_probs=False)
    assert saving.step_s == pytest.approx(128 * 2000 * flop / (0.2 * 989e12 * 8))
    assert saving.steps_between == -(-1800 // saving.step_s)
    assert saving.lost_s > 1800


@pytest.mark.parametrize(
    ("changes", "message", "better"),
    [
        (
            ["hardware.sequences_in_flight=9000"],
            "sequences_in_flight = 9000 is more than the 8192 tokens that vLLM computes at a time",
            "verl.actor_rollout_ref.rollout.max_num_batched_tokens=9000",
        ),
        (
            ["rollout.prompts=4096"],
            "VERL's queue would hold 135,168 prompts and rollouts at a time, but has room for 100,000",
            "verl.transfer_queue.backend.SimpleStorage.total_storage_size=270336",
        ),
    ],
)
def test_what_vllm_or_verl_would_refuse_later_is_refused_at_once(
    changes: list[str], message: str, better: str
) -> None:
    with pytest.raises(UserError, match=message) as excinfo:
        stage_recipe(1, "64xh100", changes)
    assert better in excinfo.value.message
    stage_recipe(1, "64xh100", [*changes, better])


def test_rollouts_that_run_ahead_take_room_in_the_queue() -> None:
    changes = ["rollout.prompts=1536", "mode=colocate_async", "asynchronous.batches_ahead=2"]
    with pytest.raises(UserError, match="152,064 prompts and rollouts at a time"):
        stage_recipe(1, "64xh100", changes)
    stage_recipe(1, "64xh100", [*changes, "mode=sync"])


@needs("verl")
def test_verls_own_sizes_are_those_that_recipes_are_compared_with() -> None:
    from support.train.verl_config import compose_config
    from verl.workers.rollout import router

    config = compose_config("ppo_trainer", [])
    assert router.DEFAULT_ROUTING_CACHE_SIZE == STICKY_REQUESTS
    assert config.actor_rollout_ref.rollout.max_num_batched_tokens == BATCHED_TOKENS
    assert config.transfer_queue.backend.SimpleStorage.total_storage_size == QUEUED_SAMPLES


def test_the_disks_speed_is_an_assumption_that_plan_names() -> None:
    slow = Assumptions(disk_bytes_per_s=50e6)
    warnings = warnings_of("8xh100", assumptions=slow)
    assert any("hardware.nccl_timeout_s = 1,800" in warning for warning in warnings)
    assert any("starting the trainer may take" in warning for warning in warnings)
