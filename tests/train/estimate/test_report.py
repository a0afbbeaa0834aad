"""Tests of a run's estimate: steps, judge, disk and hours by hand, and a warning for each part that does not fit."""

from __future__ import annotations

import json
import math
import re
from typing import Any, get_args

import pytest
from support.model_configs import PUBLISHED

from rstar2.model_shape import ModelShape, shape_of
from rstar2.train.algorithms import ObjectiveName
from rstar2.train.estimate.memory import Update, sft_memory
from rstar2.train.estimate.report import RunEstimate, estimate_run, sft_saving, sft_warnings
from rstar2.train.estimate.work import Assumptions, Rates, update_flop
from rstar2.train.recipe_files import sft_recipe, stage_recipes


def shape(name: str) -> ModelShape:
    return shape_of(PUBLISHED[name][0], name)


def estimated(
    name: str, profile: str | None, *changes: str, stages: tuple[int, ...] = (1,), **options: Any
) -> RunEstimate:
    return estimate_run(shape(name), stage_recipes(list(stages), profile, list(changes)), **options)


def warnings_of(name: str, profile: str | None, *changes: str, **options: Any) -> list[str]:
    """Returns the warnings without the one about a long run, which most of these runs get."""
    estimate = estimated(name, profile, *changes, **options)
    return [warning for warning in estimate.warnings if warning not in estimate.run_warnings]


def sft_warnings_of(profile: str) -> list[str]:
    model, recipe = shape("Qwen3-14B"), sft_recipe(profile, [])
    return list(sft_warnings(recipe, model, sft_memory(model, recipe, []), sft_saving(model, recipe, [])))


def test_the_papers_run_comes_out_at_the_week_that_it_took() -> None:
    hours = estimated("Qwen3-14B", "64xmi300x", stages=(1, 2, 3)).hours
    trained = sum(hours[f"stage{number}"] for number in (1, 2, 3))
    assert 150 < trained < 190, "arXiv 2508.20722: 510 steps in one week, 168 hours"


def test_a_papers_step_by_hand() -> None:
    step = estimated("Qwen3-14B", "64xmi300x").stages[1].step
    assert (step.rollouts, step.kept_rollouts, step.tool_calls) == (512 * 32, 512 * 16, 45_056)
    assert step.tokens == 16_384 * 4096
    assert step.most_tokens == 16_384 * 8192
    assert step.updated_tokens == 8192 * (4096 + 250)


def test_hours_follow_from_the_tokens_per_second_that_are_stated() -> None:
    estimate = estimated("Qwen3-14B", "8xh100", rates=Rates(generate=2000.0, update=1000.0))
    step = estimate.stages[1].step
    assert step.generate_s == pytest.approx(16_384 * 4096 / (8 * 2000 * 0.5))
    assert step.update_s == pytest.approx(8192 * 4346 / (8 * 1000))
    twice = estimated("Qwen3-14B", "8xh100", "optim.epochs=2", rates=Rates(generate=2000.0, update=1000.0))
    assert twice.stages[1].step.update_s == pytest.approx(2 * step.update_s)
    assert estimate.hours["stage1"] == pytest.approx(300 * (step.generate_s + step.update_s + 20) / 3600)


def test_the_operations_of_an_update_by_hand() -> None:
    """Qwen3-14B: 13.2 G parameters in layers, 0.78 G in the output layer, 40 x 40 x 128 in attention."""
    model = shape("Qwen3-14B")
    layers, head = 40 * model.layer_parameters, 151_936 * 5120
    assert model.matmul_parameters == layers + head == 14_768_307_200 - head - 5120
    assert update_flop(model, 0, checkpointing=False, log_probs=False) == 6 * (layers + head)
    assert update_flop(model, 0, checkpointing=True, log_probs=True) == 10 * layers + 8 * head
    twice = update_flop(model, 0, checkpointing=True, log_probs=True, passes=2)
    assert twice == 18 * layers + 14 * head
    # Scores and their use: two products of two operations each; the backward pass has five.
    attention = 2 * 2 * 40 * 40 * 128 * 1000
    for log_probs, passes in ((False, 4.5), (True, 5.5)):
        more = update_flop(model, 1000, True, log_probs) - update_flop(model, 0, True, log_probs)
        assert more == passes * attention


def test_long_rollouts_are_trained_on_more_slowly_because_their_attention_grows() -> None:
    long = ["rollout.tokens=65536", "hardware.update_tokens=70000", "hardware.log_prob_tokens=70000"]
    speed, slower = (
        estimated("Qwen3-4B", "64xh100", *changes).stages[1].step.update_tokens_per_s
        for changes in ([], long)
    )
    assert 0.2 < slower / speed < 0.5


def test_the_context_of_a_token_is_half_its_rollout_and_long_rollouts_have_most_tokens() -> None:
    assert Update(1, 1000.0).mean_context(10_000) == 500
    # The lengths are spread evenly from 0 to 2,000: the mean square divided by twice the mean.
    assert Update(1000, 1000.0).mean_context(10_000) == pytest.approx(2000**2 / 3 / 2000, rel=1e-3)


@pytest.mark.parametrize(("name", "profile"), [("Qwen3-14B", "64xmi300x"), ("Qwen3-14B", "64xh100")])
def test_a_run_of_less_than_two_weeks_is_not_remarked(name: str, profile: str) -> None:
    estimate = estimated(name, profile, stages=(1, 2, 3))
    assert estimate.hours["total"] < 14 * 24
    assert estimate.run_warnings == []


@pytest.mark.parametrize(("name", "profile"), [("Qwen3-14B", "8xh100"), ("Qwen3-32B", "64xmi300x")])
@pytest.mark.parametrize("key", ["hardware.nodes", "rollout.prompts"])
def test_a_run_of_weeks_is_told_with_changes_that_end_it(name: str, profile: str, key: str) -> None:
    estimate = estimated(name, profile, stages=(1, 2, 3))
    [warning] = estimate.run_warnings
    assert estimate.warnings[0] == warning
    hours = estimate.hours["total"]
    assert warning.startswith(f"the run takes about {hours:,.0f} hours, {hours / 168:,.0f} weeks: ")
    assert ("7b-8xh100" in warning) == (profile == "8xh100")
    [value] = re.findall(rf"{key}=(\d+)", warning)
    assert estimated(name, profile, f"{key}={value}", stages=(1, 2, 3)).run_warnings == []


def test_on_a_cpu_a_run_of_weeks_is_sent_to_gpus() -> None:
    [warning] = estimated("Qwen3-0.6B", "laptop").run_warnings
    assert "train on GPUs (--profile 8xh100)" in warning
    assert "hardware.nodes" not in warning


def test_the_recipe_that_is_named_for_eight_gpus_takes_less_than_two_weeks() -> None:
    recipes = stage_recipes([1], "8xh100", [], "7b-8xh100")
    assert estimate_run(shape("Qwen3-14B"), recipes).run_warnings == []


def test_a_step_is_never_shorter_than_its_longest_rollout() -> None:
    """Four problems do not keep 64 GPUs busy, but a rollout of 8K tokens takes as long as always."""
    few = estimated("Qwen3-14B", "64xh100", "rollout.prompts=4").stages[1].step
    assert few.generate_s > 60


def test_the_disk_of_a_stage_by_hand() -> None:
    disk = estimated("Qwen3-14B", "64xh100").stages[1].disk
    assert disk.checkpoint == 12 * 14_768_307_200, "177 GB: weights and two moments in fp32"
    assert disk.total == 3 * disk.checkpoint + 4 * 14_768_307_200
    more = estimated("Qwen3-14B", "64xh100", "checkpoint.export_every=100").stages[1].disk
    assert more.total == disk.total + 3 * 4 * 14_768_307_200


def test_a_checkpoint_of_an_asynchronous_mode_holds_the_rollouts_that_run_ahead() -> None:
    stage = estimated("Qwen3-14B", "64xh100").stages[1]
    ahead = estimated("Qwen3-14B", "64xh100", "mode=colocate_async", "asynchronous.batches_ahead=2").stages[1]
    tokens = stage.step.tokens + 16_384 * 250
    assert ahead.disk.queue == 3 * tokens * 80
    assert ahead.disk.total == stage.disk.total + 3 * ahead.disk.queue


def test_a_judge_of_the_papers_size_is_enough_and_one_of_two_workers_is_told() -> None:
    estimate = estimated("Qwen3-14B", "64xmi300x", judge_workers=2)
    judge = estimate.stages[1].judge
    assert 10 < judge.cores < 100
    (warning,) = estimate.warnings
    assert warning.startswith("the judge has 2 workers, but the 45,056 tool calls of a step need about")
    assert f"--judge-workers {judge.cores}" in warning
    assert warnings_of("Qwen3-14B", "64xmi300x", judge_workers=judge.cores) == []


def test_a_small_run_is_not_told_of_a_larger_judge_than_it_has_rollouts() -> None:
    small = ["rollout.prompts=8", "rollout.rollouts=8", "groups.keep=4"]
    estimate = estimated("Qwen3-0.6B", "laptop", *small, judge_workers=2, rates=Rates(generate=1e6))
    judge = estimate.stages[1].judge
    assert (judge.tool_calls, judge.cores) == (176, 64)
    assert [warning for warning in estimate.warnings if "judge" in warning] == []
    larger = warnings_of(
        "Qwen3-0.6B", "laptop", "rollout.prompts=64", judge_workers=2, rates=Rates(generate=1e6)
    )
    assert any("need about 128" in warning for warning in larger), "one worker per rollout in flight"


@pytest.mark.parametrize("profile", ["8xh100", "64xh100", "64xmi300x"])
def test_the_papers_model_fits_where_the_profile_says_so(profile: str) -> None:
    warnings = warnings_of("Qwen3-14B", profile, stages=(1, 2, 3))
    assert [each for each in warnings if "training problems are sampled" not in each] == []
    assert sft_warnings_of(profile) == []


def test_a_4b_model_fits_on_one_h200_and_a_14b_does_not() -> None:
    assert warnings_of("Qwen3-4B", "1xh200") == []
    (warning,) = warnings_of("Qwen3-14B", "1xh200")
    assert "the update needs" in warning
    assert "hardware.gpus_per_node" in warning
    assert any("the update needs" in each for each in sft_warnings_of("1xh200"))


@pytest.mark.parametrize(
    ("changes", "message", "key"),
    [
        (["hardware.offload=none"], "engine and trainer need", "hardware.offload=optimizer"),
        (["hardware.engine_memory_share=0.3"], "too little for one rollout", "hardware.tensor_parallel=4"),
        (["hardware.sequences_in_flight=1024"], "gets 1024", "hardware.sequences_in_flight="),
        (
            ["hardware.gpus_per_node=3", "rollout.prompts=510", "hardware.tensor_parallel=3"],
            "attention heads cannot be divided by hardware.tensor_parallel = 3",
            "hardware.tensor_parallel",
        ),
        (["hardware.update_tokens=131072"], "the update needs", "hardware.update_tokens"),
        (
            ["hardware.gradient_checkpointing=false"],
            "the update needs",
            "hardware.gradient_checkpointing=true",
        ),
    ],
)
def test_what_does_not_fit_is_told_with_the_key_to_change(changes: list[str], message: str, key: str) -> None:
    matching = [warning for warning in warnings_of("Qwen3-32B", "8xh100", *changes) if message in warning]
    assert len(matching) == 1
    assert key in matching[0]


def test_groups_that_are_replaced_are_rolled_out_too_and_told() -> None:
    """DAPO replaces groups without a gradient, here half of the groups. A step may have three times its problems as
    replacements."""
    plain = estimated("Qwen3-14B", "64xh100").stages[1]
    refill = ("groups.refill_batches=3",)
    half = estimated("Qwen3-14B", "64xh100", *refill, assumptions=Assumptions(trained_groups=0.5)).stages[1]
    assert (plain.step.rollouts, half.step.rollouts) == (16_384, 2 * 16_384)
    assert half.hours > 1.5 * plain.hours
    few = Assumptions(trained_groups=0.0)
    assert estimated("Qwen3-14B", "64xh100", *refill, assumptions=few).stages[1].step.rollouts == 4 * 16_384
    (replacement_warning,) = [
        warning for warning in warnings_of("Qwen3-14B", "64xh100", *refill) if "replaced" in warning
    ]
    assert "up to 4 times rollout.prompts problems, 65,536 rollouts" in replacement_warning
    assert not any("replaced" in warning for warning in plain.warnings)


def test_groups_in_rounds_are_planned_at_most_or_with_the_share_that_a_run_made() -> None:
    rounds = ("groups.round=8", "algorithm.loss_weights=problems")
    some = Assumptions(made_share=0.5)
    plain, most, half = (
        estimated("Qwen3-14B", "8xh100", *changes, assumptions=assumptions).stages[1]
        for changes, assumptions in (((), None), (rounds, None), (rounds, some))
    )
    assert [each.step.rollouts for each in (plain, most, half)] == [16_384, 16_384, 8_192]
    assert most.hours == plain.hours > 1.5 * half.hours
    assert estimated("Qwen3-14B", "8xh100", assumptions=some).stages[1].step.rollouts == 16_384
    [round_warning] = set(most.warnings) - set(plain.warnings)
    assert "in rounds of 8, so a step makes 4,096 to 16,384 rollouts" in round_warning
    advised = set(warnings_of("Qwen3-14B", "8xh100", "groups.round=8")) - set(most.warnings)
    [advice] = advised
    assert "have only about 25 % of the weight" in advice
    assert advice.endswith("without rounds: set algorithm.loss_weights=problems")
    ahead = (*rounds, "mode=colocate_async", "algorithm.correction=token-tis")
    [dropped] = set(warnings_of("Qwen3-14B", "8xh100", *ahead)) - set(
        warnings_of("Qwen3-14B", "8xh100", *ahead, "asynchronous.too_old=wait")
    )
    assert dropped.endswith("max_steps = 8 steps are dropped: set asynchronous.too_old=wait")


@pytest.mark.parametrize("objective", [name for name in get_args(ObjectiveName) if name != "grpo"])
def test_with_other_objectives_than_grpo_nothing_undoes_what_rounds_change(objective: str) -> None:
    changes = ("groups.round=16", f"algorithm.objective={objective}")
    advice = [warning for warning in warnings_of("Qwen3-14B", "8xh100", *changes) if "weight" in warning]
    if objective == "pass-k":
        assert not advice
        return
    [warning] = advice
    assert "have only about 50 % of the weight that they have without rounds" in warning
    assert f"With algorithm.objective = {objective}, no setting undoes this" in warning
    assert "set algorithm.objective=grpo and algorithm.loss_weights=problems" in warning


def test_recoveries_are_planned_at_most_or_with_the_failed_calls_that_a_run_had() -> None:
    recover = ("recover.failures=2", "recover.rollouts=4")
    plain, most, few = (
        estimated("Qwen3-14B", "8xh100", *changes, assumptions=assumptions).stages[1]
        for changes, assumptions in (
            ((), None),
            (recover, None),
            (recover, Assumptions(failed_calls_per_rollout=1 / 32, recovery_tokens=1000.0)),
        )
    )
    # With one failed call per problem of 32 rollouts, the share of problems without a failed call is 1/e. Equally many
    # have one failed call.
    largest_share = 2 - (2 + 1) * math.exp(-1)
    assert [each.step.recoveries for each in (plain, most, few)] == [0, 4096, round(4 * 512 * largest_share)]
    assert {each.step.rollouts for each in (plain, most, few)} == {16_384}
    assert most.step.kept_rollouts == plain.step.kept_rollouts + 4096
    assert most.step.tokens == plain.step.tokens + 4096 * 4096 // 2
    assert few.step.tokens == plain.step.tokens + few.step.recoveries * 1000
    assert most.step.tool_calls == plain.step.tool_calls * (16_384 + 2048) // 16_384
    assert most.hours > few.hours > plain.hours
    assert most.memory_per_gpu.expected_update_total >= plain.memory_per_gpu.expected_update_total
    [warning] = set(most.warnings) - set(plain.warnings)
    assert (
        "up to 2 failed calls of each problem get 4 extra rollouts, so a step ends with up to 4,096"
        in warning
    )


def test_on_many_gpus_a_step_lasts_at_least_as_long_as_its_rounds_one_after_another() -> None:
    one, four, two = (
        estimated("Qwen3-14B", "64xh100", *changes, assumptions=Assumptions(made_share=0.3)).stages[1].step
        for changes in ([], ["groups.round=8"], ["groups.round=16"])
    )
    longest_s = 8192 * one.token_s
    assert four.generate_s == pytest.approx(4 * longest_s)
    assert two.generate_s == pytest.approx(2 * longest_s, rel=0.2)


def test_what_a_warning_advises_ends_it() -> None:
    """If engine and trainer do not fit together, the warning names a share at which they fit."""
    (warning,) = warnings_of("Qwen3-14B", "8xh100", "hardware.offload=none")
    share = warning.split("hardware.engine_memory_share=")[1]
    assert (
        warnings_of("Qwen3-14B", "8xh100", "hardware.offload=none", f"hardware.engine_memory_share={share}")
        == []
    )


def test_a_model_too_large_for_the_machine_is_told_on_a_cpu() -> None:
    memory, time = warnings_of("Qwen3-4B", "laptop", machine_memory=24 << 30)
    assert "this machine has 24.0 GiB" in memory
    assert time.startswith("one rollout of full length while the judge is unavailable may take")
    assert warnings_of("Qwen3-0.6B", "laptop", *["rollout.prompts=1", "rollout.rollouts=4", "groups.keep=2"],
                  "rollout.tokens=64", "rollout.prompt_tokens=64", machine_memory=24 << 30) == []  # fmt: skip


def test_keys_of_a_kl_term_are_told_where_they_have_no_effect_or_take_memory() -> None:
    key = "verl.actor_rollout_ref.actor"
    [idle] = warnings_of("Qwen3-14B", "64xmi300x", f"{key}.kl_loss_coef=0.001")
    assert idle.startswith("kl_loss_coef has no effect without a KL term in the loss")
    [warning] = warnings_of("Qwen3-14B", "64xmi300x", f"{key}.kl_loss_coef=0.001", f"{key}.use_kl_loss=true")
    # 14.77 G parameters of 4 bytes over 64 GPUs.
    assert "VERL also holds a reference model, 0.9 GiB per GPU" in warning


def test_a_warning_about_one_stage_names_it() -> None:
    warnings = warnings_of("Qwen3-14B", "8xh100", stages=(1, 2, 3))
    assert [warning.split(":")[0] for warning in warnings] == ["stage 3"]
    assert "--solved" in warnings[0]


def test_the_filter_runs_on_all_engines_and_its_traces_take_disk() -> None:
    hours, disk = {}, {}
    for changes in ((), ("hardware.nodes=4",), ("keep_filter_traces=true",)):
        stage = estimated("Qwen3-14B", "64xh100", *changes, stages=(3,)).stages[3]
        hours[changes], disk[changes] = stage.filter_hours, stage.disk.filter
    assert 1.7 < hours["hardware.nodes=4",] / hours[()] < 2.3
    assert disk[()] < 50e6
    assert disk["keep_filter_traces=true",] > 20e9


def test_the_record_has_every_part_and_is_json() -> None:
    estimate = estimated("Qwen3-14B", "64xh100", stages=(1, 2, 3), judge_workers=4)
    record = json.loads(json.dumps(estimate.record()))
    assert record["model"]["parameters"] == 14_768_307_200
    assert {"memory_per_gpu", "step", "judge", "disk", "hours", "warnings", "assumptions"} <= set(record)
    assert {"weights", "gradients", "optimizer", "activations", "kv_cache", "full_length_rollouts"} <= set(
        record["memory_per_gpu"]
    )
    assert {"rollouts", "tokens", "tool_calls"} <= set(record["step"])
    assert set(record["hours"]) == {"stage1", "stage2", "stage3", "stage3_filter", "total"}
    assert record["hours"]["total"] == pytest.approx(
        sum(hours for name, hours in record["hours"].items() if name != "total")
    )
    assert record["stage"] == 3, "the table shows the largest step, and of two equal steps the later one"
    assert record["memory_per_gpu"] == record["stages"]["stage3"]["memory_per_gpu"]
    assert record["judge"]["workers"] == 4
