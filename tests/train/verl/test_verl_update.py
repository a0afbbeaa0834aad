"""Tests of VERL's update of a tiny model: the tokens that are trained on, their weights, and the learning rate."""

from __future__ import annotations

import multiprocessing
import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from support.optional import needs
from support.scripted_rollouts import Group, Trained, Update, in_trainer
from support.small_disk import resize, small_disk

from rstar2.data import builtin
from rstar2.demo.tiny import TinyModel, make_tiny_model
from rstar2.errors import UserError
from rstar2.loop.trace import read_traces
from rstar2.loop.turns.choose import load_codec
from rstar2.processes import unassigned_ports
from rstar2.train import stages
from rstar2.train.algorithms import CorrectionName, ObjectiveName
from rstar2.train.command import CPU_ENVIRONMENT, Command, stage_command
from rstar2.train.recipe import StageRecipe
from rstar2.train.recipe_files import stage_recipe
from rstar2.train.records.steps import COLUMNS
from rstar2.train.records.timing import PhaseTimer
from rstar2.train.stages import Start, continue_optimizer
from rstar2.train.trainer.checkpoints import fault
from rstar2.train.trainer.disk_space import SMALL_FILES_BYTES

pytestmark = [pytest.mark.long, pytest.mark.timeout(5400), needs("verl")]

BOUND_S = 1800.0
ONE_RANK = {
    "RANK": "0",
    "WORLD_SIZE": "1",
    "LOCAL_RANK": "0",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "0",
    "RAY_ADDRESS": "local",
    "RAY_raylet_start_wait_time_s": "60",
}
Train = Callable[..., Trained]
SMALL = [
    "rollout.rollouts=8",
    "groups.keep=4",
    "rollout.tokens=400",
    "rollout.prompt_tokens=64",
    "traces_per_step=0",
    "steps=4",
    # With clipping, every gradient would have the same length.
    "verl.actor_rollout_ref.actor.optim.clip_grad=1e9",
]
SIZE = TinyModel(vocab=512, hidden=32, layers=1, heads=2)
MIXED = [Group("a", "11100100"), Group("bb", "01111000", output="a longer reply: 123456")]


def recipe(prompts: int, *changes: str) -> StageRecipe:
    return stage_recipe(1, "laptop", [*SMALL, f"rollout.prompts={prompts}", *changes])


@contextmanager
def trainer_process(**environment: str) -> Iterator[Callable[..., Any]]:
    """Calls a function of `support.train.verl_trainer` in a process with the laptop profile's environment."""
    spawn = multiprocessing.get_context("spawn")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**CPU_ENVIRONMENT, **ONE_RANK, **environment}.items():
            patch.setenv(name, value)
        pool = ProcessPoolExecutor(1, spawn)
        pool.submit(in_trainer, "start", os.getpid()).result(BOUND_S)
    with pool:
        yield lambda *call: pool.submit(in_trainer, *call).result(BOUND_S)


@pytest.fixture(scope="module")
def trainer() -> Iterator[Callable[..., Any]]:
    """VERL's trainer with the laptop profile."""
    with trainer_process() as call:
        yield call


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the tiny model and of the stages that train it."""
    return tmp_path_factory.mktemp("verl")


@pytest.fixture(scope="module")
def train(trainer: Callable[..., Any], root: Path) -> Train:
    """`support.train.verl_trainer.train` of a tiny model."""
    trainer("make_model", root / "model")
    count = 0

    def run(recipe: StageRecipe, steps: list[list[Group]], *more: Any, folder: Path | None = None) -> Any:
        nonlocal count
        count += 1
        return trainer("train", recipe, root / "model", folder or root / f"stage-{count}", steps, *more)

    return run


def test_the_plugin_makes_the_cpu_a_platform_and_a_rollout_backend(trainer: Callable[..., Any]) -> None:
    registered = trainer("plugin")
    assert (registered["platform"], registered["rollout"], registered["replica"]) == (
        "cpu",
        "CpuRollout",
        "CpuReplica",
    )
    assert registered["engine"] == "CpuTrainingEngine"
    assert registered["process_groups"] == "rstar2.train.verl.plugin"
    assert "rstar2" in registered["log_probs"]
    assert unassigned_ports()[-1] in range(*registered["ports"])
    assert registered["computed"].shape == (7,)
    assert registered["computed"].allclose(registered["expected"])


def same(one: Update, other: Update, scale: float = 1.0, tolerance: float = 0.0) -> bool:
    """Whether two gradients agree within a share of each tensor's maximum. The second is multiplied by `scale`."""
    return all(
        float((gradient - scale * other.gradient[name]).abs().max())
        <= tolerance * float(gradient.abs().max())
        for name, gradient in one.gradient.items()
    )


@pytest.fixture(scope="module")
def plain(train: Train, root: Path) -> Trained:
    """Runs one step on two mixed groups of 8 rollouts each. 4 of each group are trained on."""
    return train(recipe(2, "traces_per_step=16"), [MIXED], folder=root / "plain")


def test_the_entropy_that_verl_reports_is_that_of_the_analysis(plain: Trained, root: Path) -> None:
    """Both means are over the tokens that were trained on. VERL's entropy is that of the policy before the update."""
    from rstar2.analysis import forward

    kept_traces = [each for each in read_traces(root / "plain" / "traces" / "step-000001.jsonl") if each.kept]
    assert len(kept_traces) == 8
    entropies = np.concatenate(forward.entropies(forward.load_model(root / "model"), kept_traces))
    assert plain.updates[0].metrics["actor/entropy"] == pytest.approx(float(entropies.mean()), rel=1e-5)


def test_labels_of_tool_output_change_no_gradient(train: Train, plain: Trained) -> None:
    [update] = plain.updates
    tool_change, answer_change = (
        train(recipe(2), [MIXED], f"{part} changed") for part in ("tool output", "own tokens")
    )
    assert tool_change.relabelled > 0
    assert same(update, tool_change.updates[0])
    assert answer_change.relabelled > 0
    assert not same(update, answer_change.updates[0], tolerance=0.5), (
        "the test must notice a change of labels that count"
    )


def test_advantages_are_those_of_the_g_kept(plain: Trained) -> None:
    [update] = plain.updates
    for group in MIXED:
        recovery_advantages = {
            key: each for key, each in update.advantages.items() if key.startswith(f"{group.name}_")
        }
        rewards = [reward for reward, _ in recovery_advantages.values()]
        assert rewards == [
            float(group.rollouts[int(key.split("_")[1])] == "1") for key in recovery_advantages
        ]
        assert len(recovery_advantages) == 4
        mean = sum(rewards) / 4
        # VERL uses the standard deviation of a sample, and adds a small number to the denominator.
        deviation = (sum((reward - mean) ** 2 for reward in rewards) / 3) ** 0.5
        for reward, advantages in recovery_advantages.values():
            assert advantages.tolist() == pytest.approx(
                [(reward - mean) / (deviation + 1e-6)] * len(advantages)
            )


def test_a_step_is_one_update_before_anything_is_clipped(plain: Trained) -> None:
    [update] = plain.updates
    assert update.metrics["actor/ppo_kl"] == 0
    assert update.metrics["actor/pg_clipfrac"] == update.metrics["actor/pg_clipfrac_lower"] == 0


def test_each_further_pass_over_a_step_is_an_update_of_its_own_that_is_clipped(
    train: Train, plain: Trained
) -> None:
    """At this learning rate the first update moves the policy out of the clip range."""
    first, second = train(recipe(2, "optim.epochs=2", "optim.lr=0.1"), [MIXED]).updates
    assert same(plain.updates[0], first, tolerance=1e-4)
    assert not same(first, second, tolerance=0.1)
    assert second.metrics["actor/ppo_kl"] != 0
    assert second.metrics["actor/pg_clipfrac"] > 0


def test_an_update_is_the_same_in_any_number_of_micro_batches(train: Train, plain: Trained) -> None:
    """A rollout of full length fills a micro-batch. The rollouts here are shorter, and of several lengths."""
    [update] = train(recipe(2, "hardware.update_tokens=464", "hardware.log_prob_tokens=464"), [MIXED]).updates
    assert len(plain.updates[0].micro_batches) < len(update.micro_batches)
    assert all(len(rows) * max(rows) <= 464 for rows in update.micro_batches)
    assert update.tokens == plain.updates[0].tokens
    assert same(plain.updates[0], update, tolerance=1e-4)
    assert update.metrics["actor/entropy"] == pytest.approx(plain.updates[0].metrics["actor/entropy"])


def test_an_update_is_the_same_with_and_without_padding(plain: Trained, root: Path) -> None:
    """The profiles for GPUs pack rollouts into one row, so attention and loss are those of `torch_kernels`."""
    packed = recipe(2, "hardware.attention=torch")
    modules = stage_command(packed, root, root).env["VERL_USE_EXTERNAL_MODULES"]
    with trainer_process(VERL_USE_EXTERNAL_MODULES=modules) as call:
        [update] = call("train", packed, root / "model", root / "packed", [MIXED]).updates
    assert update.tokens == plain.updates[0].tokens
    assert same(plain.updates[0], update, tolerance=1e-4)
    for name in ("actor/entropy", "actor/grad_norm"):
        assert update.metrics[name] == pytest.approx(plain.updates[0].metrics[name], rel=1e-4)


def test_an_update_is_the_same_with_and_without_rejected_groups(train: Train, plain: Trained) -> None:
    [alone] = plain.updates
    # All correct, all wrong, and one wrong of eight, which the selection does not choose.
    rejected_groups = [
        Group("c", "1" * 8),
        Group("dd", "0" * 8),
        Group("eee", "1" * 7 + "0"),
        Group("ffff", "1" * 8),
    ]
    [among] = train(recipe(6), [[*rejected_groups[:2], *MIXED, *rejected_groups[2:]]]).updates
    assert set(among.advantages) == set(alone.advantages)
    # Empty rollouts replace the 16 rollouts of rejected groups.
    assert sorted(chain(*among.micro_batches)) == [2] * 16 + sorted(chain(*alone.micro_batches))
    assert same(alone, among, tolerance=1e-4)
    assert among.metrics["actor/grad_norm"] == pytest.approx(alone.metrics["actor/grad_norm"], rel=1e-4)
    # Training on these rollouts would reduce the mean over tokens, because their advantages would be zero.
    [update] = train(
        recipe(6, "groups.drop_equal_rewards=false"), [[*rejected_groups[:2], *MIXED, *rejected_groups[2:]]]
    ).updates
    assert update.tokens > 2 * alone.tokens
    assert same(alone, update, scale=update.tokens / alone.tokens, tolerance=1e-4)


def test_a_step_weighs_its_tokens_or_its_problems_alike(train: Train, plain: Trained) -> None:
    """The gradient is the mean of the problems' gradients. Problems are weighted by their tokens or equally."""
    alone = [train(recipe(1), [[group]]).updates[0] for group in MIXED]
    assert alone[0].tokens != alone[1].tokens
    [by_tokens] = plain.updates
    [by_problems] = train(recipe(2, "algorithm.loss_weights=problems"), [MIXED]).updates
    for update, weights in ((by_tokens, [each.tokens for each in alone]), (by_problems, [1, 1])):
        for name, gradient in update.gradient.items():
            parts = [weight * each.gradient[name] for weight, each in zip(weights, alone, strict=True)]
            assert gradient.allclose(
                sum(parts) / sum(weights), rtol=1e-3, atol=1e-4 * float(gradient.abs().max())
            )
    assert not same(by_tokens, by_problems, tolerance=0.01)


ALIKE: dict[ObjectiveName, ObjectiveName] = {
    "cispo": "grpo",
    "kl-cov": "grpo",
    "dro": "grpo",
    "dppo-tv": "dr-grpo",
    "dppo-kl": "dr-grpo",
    "gmpo": "gspo",
    "sapo": "gspo",
}
"""Dict from each objective to one that uses ratios differently but gives the same result in a step's first update.

In that update all ratios are 1.
"""


UNEVEN = [Group("a", "00001000"), Group("bb", "01111000", output="a longer reply: 123456")]
"""The update trains on one correct and three wrong rollouts of the first group, and on two and two of the second."""
_LOSS = "verl.actor_rollout_ref.actor.policy_loss"
EARLIER: dict[ObjectiveName, list[str]] = {
    # The covariances of a random model's tokens are smaller than those that the paper clips.
    "clip-cov": [f"{_LOSS}.clip_cov_lb=0.0", f"{_LOSS}.clip_cov_ratio=0.5"],
}
"""Settings with which an objective has an effect on an untrained model."""


@pytest.fixture(scope="module")
def by_objective(train: Train) -> Callable[[ObjectiveName], Update]:
    """Returns the update of the same step under an objective."""
    updates: dict[ObjectiveName, Update] = {}

    def update(name: ObjectiveName) -> Update:
        if name not in updates:
            objective_recipe = recipe(2, f"algorithm.objective={name}", *EARLIER.get(name, ()))
            [updates[name]] = train(objective_recipe, [UNEVEN]).updates
        return updates[name]

    return update


@pytest.mark.parametrize("name", get_args(ObjectiveName))
def test_every_objective_updates_the_model(
    by_objective: Callable[[ObjectiveName], Update], name: ObjectiveName
) -> None:
    update = by_objective(name)
    assert all(gradient.isfinite().all() for gradient in update.gradient.values())
    assert update.metrics["actor/grad_norm"] > 0
    others = [each for each in get_args(ObjectiveName) if each != name]
    alike = {each for each in others if same(by_objective(each), update, tolerance=1e-3)}
    assert alike == {each for each in others if ALIKE.get(each, each) == ALIKE.get(name, name)}


@pytest.mark.parametrize("name", [name for name in get_args(CorrectionName) if name != "none"])
def test_every_correction_updates_the_model_and_what_it_leaves_out_is_counted(
    train: Train, name: CorrectionName
) -> None:
    """The scripted engine reports the probability e^-1 for every token. The trainer computes about e^-6."""
    changes = [f"algorithm.correction={name}", "algorithm.correction_lower=1e-300"]
    [update] = train(recipe(2, *changes), [UNEVEN]).updates
    assert all(gradient.isfinite().all() for gradient in update.gradient.values())
    assert update.metrics["actor/grad_norm"] > 0
    [metric] = [column.value for column in COLUMNS if column.name == "without_weight"]
    assert metric(update.metrics) == (None if name.endswith("tis") else 0)
    if name == "icepop":
        with pytest.raises(ZeroDivisionError):
            train(recipe(2, changes[0]), [UNEVEN])
    elif not name.endswith("tis"):
        [none] = train(recipe(2, changes[0]), [UNEVEN]).updates
        assert metric(none.metrics) == 1
        assert not any(gradient.any() for gradient in none.gradient.values())


def test_gmpos_update_is_the_same_in_any_number_of_micro_batches(
    train: Train, by_objective: Callable[[ObjectiveName], Update]
) -> None:
    several = ["hardware.update_tokens=464", "hardware.log_prob_tokens=464"]
    [update] = train(recipe(2, "algorithm.objective=gmpo", *several), [UNEVEN]).updates
    assert len(by_objective("gmpo").micro_batches) < len(update.micro_batches)
    assert same(by_objective("gmpo"), update, tolerance=1e-4)


def test_a_penalty_makes_longer_right_rollouts_worth_less_than_shorter_ones_and_more_than_wrong_ones(
    train: Train,
) -> None:
    texts = {"1": "A right one that says more than the others do, before it calls its tool. "}
    step = [Group("a", "11100100"), Group("bb", "01111000", says=texts)]
    [update] = train(recipe(2, "penalty.length=0.5", "penalty.turns=0.1"), [step]).updates
    right = {
        name: {reward for key, (reward, _) in update.advantages.items() if key.startswith(name) and reward}
        for name in ("a_", "bb_")
    }
    assert 0.4 < min(right["bb_"]) <= max(right["bb_"]) < min(right["a_"]) <= max(right["a_"]) < 1
    assert 0.1 < update.metrics["rstar2/penalty"] < 0.6
    for reward, advantages in update.advantages.values():
        assert (advantages > 0).all() == bool(reward)


RECOVER = ("recover.failures=1", "recover.rollouts=3")


def test_recoveries_are_compared_with_each_other_and_teach_only_what_they_wrote(
    train: Train, plain: Trained
) -> None:
    groups = [replace(MIXED[0], rollouts="e110e100", recoveries="110"), MIXED[1]]
    [update] = train(recipe(2, *RECOVER), [groups]).updates
    rewards: dict[str, list[float]] = defaultdict(list)
    for key, (reward, _) in update.advantages.items():
        rewards[key.rsplit("_", 2)[0]].append(reward)
    assert {name: len(each) for name, each in rewards.items()} == {"a": 4, "bb": 4, "a_after0": 3}
    for key, (reward, advantages) in update.advantages.items():
        group = np.array(rewards[key.rsplit("_", 2)[0]])
        expected = (reward - group.mean()) / (group.std(ddof=1) + 1e-6)
        assert advantages.tolist() == pytest.approx([expected] * len(advantages), rel=1e-4)
    [unchanged] = train(recipe(2, *RECOVER), [groups], "tool output changed").updates
    assert same(update, unchanged), "the reply and the beginning of a recovery are not learned"
    [without] = train(recipe(2), [groups]).updates
    recovery_samples = sum(len(each) for key, (_, each) in update.advantages.items() if "after" in key)
    assert update.tokens == without.tokens + recovery_samples
    assert not same(update, without, tolerance=0.5)
    assert update.metrics["rstar2/rollouts"] == without.metrics["rstar2/rollouts"] == 16
    assert update.metrics["rstar2/recover/kept"] == 3
    assert update.metrics["rstar2/recover/correct"] == pytest.approx(2 / 3)
    assert update.metrics["rstar2/recover/repaired"] == 1
    assert update.metrics["actor/ppo_kl"] == 0, (
        "there is one update, although a step has more rollouts than without recoveries"
    )


def test_a_batch_with_lost_calls_trains_on_none_of_them(train: Train) -> None:
    fewer = ["rollout.rollouts=20", "groups.keep=10"]

    def groups(**says: str) -> list[Group]:
        return [Group("a", "x1110000111000011110", says=says), Group("bb", "111000011100001111x0", says=says)]

    [update] = train(recipe(2, *fewer), [groups()]).updates
    assert update.metrics["rstar2/lost_rollouts"] == 0.05 * update.metrics["rstar2/rollouts"]
    assert not {"a_0_0", "bb_18_0"} & set(update.advantages)
    assert len(update.advantages) == 20
    [other] = train(recipe(2, *fewer), [groups(x="What a lost rollout says teaches nothing. ")]).updates
    assert same(update, other)
    [other] = train(recipe(2, *fewer), [groups(**{"1": "What a right one says does. "})]).updates
    assert not same(update, other, tolerance=0.01)


def test_a_batch_with_failed_rollouts_trains_on_none_of_them(train: Train) -> None:
    fewer = ["rollout.rollouts=20", "groups.keep=10"]
    step = [Group("a", "f1110000111000011110"), Group("bb", "111000011100001111f0")]
    [update] = train(recipe(2, *fewer), [step]).updates
    metrics = {
        name: update.metrics[f"rstar2/{name}"] for name in ("failed_rollouts", "rollouts", "pass_rate")
    }
    assert metrics == {"failed_rollouts": 2, "rollouts": 40, "pass_rate": 20 / 38}
    assert not {"a_0_0", "bb_18_0"} & set(update.advantages)
    assert len(update.advantages) == 20


def test_a_step_whose_long_rollouts_fail_updates_nothing_and_the_user_is_told_at_once(
    trainer: Callable[..., Any], root: Path, tmp_path: Path
) -> None:
    """In every attempt, nine of ten long rollouts fail after their first turn. Long rollouts are correct less often."""
    failing = [Group("a", "1110111101ffffffff0f"), Group("bb", "1011111110fffff0ffff")]
    small_recipe = recipe(2, "rollout.rollouts=20", "groups.keep=10")
    failing_trainer = trainer("train_failing", small_recipe, root / "model", tmp_path / "stage", failing)
    assert (failing_trainer.updates, failing_trainer.attempts) == (0, 3)
    assert (
        "rollouts that failed: 18 (18 x engine: VERL's rollout server failed: the engine is out of memory)"
        in failing_trainer.failure
    )
    assert "The step was not trained on" in failing_trainer.failure
    assert len(failing_trainer.faults) == 2
    for text in failing_trainer.faults:
        assert text.startswith("step 1: rollouts that failed: 18 (18 x engine: ")


def test_adamw_and_the_warm_up_continue_from_stage_1_to_stage_2(train: Train, tmp_path: Path) -> None:
    whole = ["optim.warmup_steps=4", "rollout.rollouts=4"]
    steps = [[Group("a", f"{i:04b}"), Group("bb", f"{15 - i:04b}")] for i in (5, 6, 9, 10, 12)]
    uninterrupted = train(recipe(2, *whole, "steps=5"), steps)
    stage1 = train(recipe(2, *whole, "steps=2"), steps[:2], folder=tmp_path / "stage1")
    continued = recipe(2, *whole, "steps=3", "optim.state=continued")
    continue_optimizer(tmp_path / "stage1" / "model", tmp_path / "stage2", continued)
    stage2 = train(continued, steps[2:], folder=tmp_path / "stage2")
    assert all(map(_equal, stage1.moments, stage2.moments_before))
    assert len(stage2.moments_before) == len(uninterrupted.moments) > 0
    for update, expected in zip(stage2.updates, uninterrupted.updates[2:], strict=True):
        assert same(update, expected)
    assert all(map(_equal, stage2.moments, uninterrupted.moments))
    assert all(_equal(stage2.weights[name], each) for name, each in uninterrupted.weights.items())
    rate = recipe(2).optim.lr
    rising = [rate / 4, rate / 2, 3 * rate / 4, rate, rate]
    assert [update.lr for update in uninterrupted.updates] == pytest.approx(rising)
    assert [update.lr for update in stage1.updates + stage2.updates] == pytest.approx(rising)
    # VERL logs the learning rate of the next step.
    learning_rates = [update.metrics["actor/lr"] for update in uninterrupted.updates]
    assert learning_rates == pytest.approx([*rising[1:], rate])
    fresh = train(recipe(2, *whole, "steps=1"), steps[:1], folder=tmp_path / "stage3")
    assert (fresh.moments_before, fresh.updates[0].lr) == ([], pytest.approx(rate / 4))


def test_a_kill_while_the_model_is_made_leaves_that_alone_to_be_done(train: Train, tmp_path: Path) -> None:
    folder = tmp_path / "stage1"
    trained = train(recipe(2, "steps=1"), [MIXED], folder=folder)
    (folder / ".model.part").mkdir()
    (folder / ".model.part" / "model.safetensors").write_bytes(b"torn")
    settings = recipe(2, "steps=1")
    no_trainer = Command(["/bin/false"], {**CPU_ENVIRONMENT, "VERL_FILE_LOGGER_PATH": str(folder / "none")})
    start = Start(
        command=no_trainer,
        folder=folder,
        steps=1,
        base=folder.parent / "base",
        log=tmp_path / "log",
        hardware=settings.hardware,
        checkpoint=settings.checkpoint,
        timer=PhaseTimer(folder),
        warn=pytest.fail,
    )
    make_tiny_model(start.base, SIZE, builtin.traces(1, 20, {}), builtin.FORMAT, seed=2)
    model = stages.train(start, lambda step, metrics: pytest.fail("no step is run again"))
    from safetensors.torch import load_file

    weights = load_file(model / "model.safetensors")
    assert {name for name in weights if not _equal(weights[name], trained.weights[name])} == set()
    assert len(weights) > 5
    assert {str(each.dtype) for each in weights.values()} == {"torch.float32"}, "training has this precision"
    assert load_codec(model).format == load_codec(start.base).format
    assert [path.name for path in folder.glob(".*")] == []


def _equal(one: Any, other: Any) -> bool:
    return bool((one == other).all())


def test_a_checkpoint_without_space_is_not_begun_and_the_same_command_continues(
    train: Train, root: Path
) -> None:
    with small_disk(root / "disk", 32 << 20) as disk:
        stage = disk / "stage1"
        with pytest.raises(
            UserError, match="not enough disk space for the checkpoint of step 1: it needs"
        ) as excinfo:
            train(recipe(2), [MIXED], folder=stage)
        assert "The checkpoint was not written" in excinfo.value.message
        assert not list(stage.glob("checkpoints/global_step_*"))
        resize(disk, 256 << 20)
        train(recipe(2), [MIXED], folder=stage)
        checkpoint = stage / "checkpoints" / "global_step_1"
        assert fault(checkpoint) is None
        # The needed space in the message is the size of the checkpoint, plus the space for small files.
        [needed] = re.findall(r"it needs (\d+) MiB", excinfo.value.message)
        weights = sum(path.stat().st_size for path in checkpoint.glob("actor/[mo]*.pt"))
        assert weights / (1 << 20) + SMALL_FILES_BYTES / (1 << 20) == pytest.approx(float(needed), abs=1.0)
