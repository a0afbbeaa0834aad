"""Tests of a stage's folder: files are complete or absent, and finished work is not repeated."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import signal
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.eval.verdict_files import write_verdicts
from support.optional import needs
from support.small_disk import resize, small_disk
from support.waiting import TIMEOUT_S, wait_until

from rstar2.cli.train import left_out
from rstar2.cli.training import ProgressRows
from rstar2.data.parquet import read_rows, rl_rows, write_parquet
from rstar2.data.problem import Problem
from rstar2.errors import Failure, UserError
from rstar2.eval.settings import JudgeChoice
from rstar2.files import write_json
from rstar2.loop.turns.codec import ChatCodec
from rstar2.runs import Run, open_run
from rstar2.train import stages
from rstar2.train.command import Command, stage_command
from rstar2.train.filter.progress import VERDICTS
from rstar2.train.pipeline import Pipeline, run_train_plan
from rstar2.train.recipe import CheckpointSettings, Hardware, StageRecipe
from rstar2.train.recipe_files import stage_recipe, stage_recipes
from rstar2.train.records.outcome_log import OUTCOMES_FILE, StepOutcomes, begin, outcomes_of
from rstar2.train.records.progress import PROGRESS_FILE
from rstar2.train.records.timing import PhaseTimer
from rstar2.train.sampling import drop_solved
from rstar2.train.stages import Start, continue_optimizer, fitting, is_done, train, write_stage_inputs
from rstar2.train.start_checks import TrainPlan, check_outcomes, plan_training
from rstar2.train.trainer.checkpoints import POINTER, steps_of
from rstar2.train.trainer.saving import STOP_FILE


def row(name: str) -> dict[str, dict[str, str]]:
    return {"extra_info": {"id": name}}


def test_only_problems_solved_every_time_are_dropped() -> None:
    samples = [("a", True)] * 4 + [("b", n != 2) for n in range(4)]
    unsolved_rows = drop_solved([row("a"), row("b")], samples, times=4, fill=0)
    assert [item["extra_info"]["id"] for item in unsolved_rows] == ["b"]


def test_solved_problems_fill_up_a_batch_that_would_be_too_small() -> None:
    samples = [(name, True) for name in "abc" for _ in range(2)]
    assert len(drop_solved([row(name) for name in "abc"], samples, times=2, fill=2)) == 2


def test_a_problem_with_too_few_samples_is_named() -> None:
    with pytest.raises(UserError, match="problem b has 1 samples, but 2 are needed"):
        drop_solved([row("b")], [("b", True)], times=2, fill=0)


def test_prompts_that_are_too_long_are_left_out(codec: ChatCodec) -> None:
    rows = [{"prompt": [{"role": "user", "content": "word " * n}]} for n in (1, 600)]
    assert fitting(rows, codec, 600) == rows[:1]


@pytest.fixture
def model(tmp_path: Path, tokenizer: Any) -> Path:
    """Creates a folder with a tokenizer and an empty weights file."""
    folder = tmp_path / "model"
    tokenizer.save_pretrained(folder)
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").touch()
    return folder


def write_problems(path: Path, short: int, long: int) -> Path:
    """Writes `short` problems, and `long` problems whose prompts have more than 600 tokens."""
    texts = ["How many?"] * short + ["How many? " * 600] * long
    write_parquet(path, rl_rows([Problem(str(n), text, "7") for n, text in enumerate(texts)], 8, "made"))
    return path


@needs("torch")
def test_problems_whose_prompts_are_too_long_are_counted_before_a_run_is_made(
    model: Path, tmp_path: Path
) -> None:
    data = write_problems(tmp_path / "train.parquet", short=10, long=30)
    held_out = write_problems(tmp_path / "held.parquet", short=2, long=1)

    def plan_of(*changes: str) -> TrainPlan:
        recipes = stage_recipes([1, 2], None, ["stage2.optim.state=fresh", *changes])
        return plan_training(recipes, model, data, None, JudgeChoice("http://judge"))

    assert list(left_out(plan_of("rollout.prompts=10", "rollout.prompt_tokens=9999"))) == []
    changes = ("stage1.rollout.prompt_tokens=600", "stage2.rollout.prompt_tokens=9999")
    plan = plan_of("rollout.prompts=10", f"stage1.held_out.data={held_out}", *changes)
    assert list(left_out(plan)) == [
        "stage 1: left out 30 problems and 1 held-out problem with a prompt of more than 600 tokens"
    ]
    message = r"train\.parquet has 10 problems whose prompt has at most rollout.prompt_tokens = 600 tokens, but 16 are"
    with pytest.raises(UserError, match=message) as excinfo:
        plan_of("rollout.prompts=16", *changes)
    assert excinfo.value.hint == "Raise rollout.prompt_tokens, or lower rollout.prompts."
    write_problems(held_out, short=0, long=3)
    with pytest.raises(UserError, match=r"held\.parquet has 0 problems whose prompt has at most"):
        plan_of("rollout.prompts=10", f"stage1.held_out.data={held_out}", *changes)


@needs("torch")
def test_problems_whose_answer_the_grader_cannot_read_are_counted_named_and_left_out(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    golds = ["7", "}{", "8", "???", "9"]
    why = "it has no letters, digits or mathematical signs"
    problems = [Problem(str(n), "How many?", gold) for n, gold in enumerate(golds)]
    data, held_out = tmp_path / "train.parquet", tmp_path / "held.parquet"
    write_parquet(data, rl_rows(problems, 8, "made"))
    write_parquet(held_out, rl_rows(problems[:2], 1, "made"))
    recipe = ["rollout.prompts=3", f"held_out.data={held_out}"]
    plan = plan_training(stage_recipes([1], None, recipe), model, data, None, JudgeChoice("http://judge"))
    assert [row["reward_model"]["ground_truth"] for row in plan.rows] == ["7", "8", "9"]
    assert list(left_out(plan)) == [
        f"{data}: left out 2 problems with unreadable reference answers: row 2: '}}{{' ({why}); "
        f"row 4: '???' ({why})",
        f"{held_out}: left out 1 problem with unreadable reference answers: row 2: '}}{{' ({why})",
    ]
    write_stage_inputs(plan.recipes[1], model, plan.rows, tmp_path / "stage1", ("http://judge", None))
    assert len(read_rows(tmp_path / "stage1" / "held_out.parquet")) == 1

    def no_pipeline(*inputs: Any) -> None:
        raise Failure("the judge does not start")

    monkeypatch.setattr("rstar2.train.pipeline.open_pipeline", no_pipeline)
    with pytest.raises(Failure), open_run(tmp_path / "run", "train", plan.config()) as run:
        run_train_plan(plan, run, ProgressRows())
    assert json.loads((run.path / "left_out.json").read_text()) == {
        str(data): [{"row": 2, "answer": "}{", "why": why}, {"row": 4, "answer": "???", "why": why}],
        str(held_out): [{"row": 2, "answer": "}{", "why": why}],
    }
    with pytest.raises(
        UserError,
        match=r"3 problems \(not counting 2 that are left out, .* their answers\), but a step needs 4",
    ) as error:
        plan_training(
            stage_recipes([1], None, ["rollout.prompts=4"]), model, data, None, JudgeChoice("http://judge")
        )
    assert "`--set rollout.prompts=N` (N is at most 3)" in error.value.hint


@needs("torch")
def test_a_stage_does_not_begin_with_fewer_prompts_than_a_step_needs(model: Path, tmp_path: Path) -> None:
    rows = read_rows(write_problems(tmp_path / "train.parquet", short=3, long=3))
    recipe = stage_recipe(1, None, ["rollout.prompts=4", "rollout.prompt_tokens=600"])
    with pytest.raises(
        UserError, match=r"the training data has 3 problems whose prompt .*, but 4 are needed"
    ):
        write_stage_inputs(recipe, model, rows, tmp_path / "stage1", ("http://judge", None))


@needs("torch")
def test_the_filter_before_a_stage_needs_no_verdicts_on_problems_whose_prompts_are_too_long(
    model: Path, tmp_path: Path
) -> None:
    rows = read_rows(write_problems(tmp_path / "train.parquet", short=4, long=2))
    changes = ("drop_solved=1", "rollout.prompts=3", "rollout.prompt_tokens=600", "optim.state=continued")
    run = tmp_path / "run"
    solved = tmp_path / VERDICTS
    write_verdicts(solved, ((name, 0, "correct" if name == "0" else "wrong") for name in "0123"))
    pipeline = Pipeline(
        Run(run, 1),
        ProgressRows(),
        ("http://judge", None),
        None,
        lambda hardware: {},
        PhaseTimer(run),
        solved,
    )
    # The stage first writes its inputs. Then it finds no optimizer to continue.
    with pytest.raises(UserError, match="has no optimizer state beside it"):
        list(pipeline.train_stages({3: stage_recipe(3, None, [*changes])}, model, rows, run))
    rows_left = read_rows(run / "stage3" / "train.parquet")
    assert [each["extra_info"]["id"] for each in rows_left] == ["1", "2", "3"]


@needs("torch")
def test_a_stage_leaves_out_what_the_one_before_is_believed_to_solve_without_sampling_anything(
    model: Path, tmp_path: Path
) -> None:
    rows = read_rows(write_problems(tmp_path / "train.parquet", short=5, long=0))
    changes = ("drop_solved=8", "solved_by=outcomes", "rollout.prompts=3", "optim.state=continued")
    recipe = stage_recipe(3, None, [*changes])
    run, before = tmp_path / "run", tmp_path / "run" / "stage2"
    before.mkdir(parents=True)
    model.rename(before / "model")
    pipeline = Pipeline(
        Run(run, 1), ProgressRows(), ("http://judge", None), None, lambda hardware: {}, PhaseTimer(run)
    )
    with pytest.raises(UserError, match=r'solved_by = "outcomes" needs .*stage2/outcomes\.jsonl'):
        list(pipeline.train_stages({3: recipe}, before / "model", rows, run))
    begin(before, "01234", "paper", tmp_path / "sft" / "model")
    # In the last step, problems 0 and 1 were solved every time, 2 often and 3 never. Problem 4 was not used.
    counts = {"0": (32, 32), "1": (32, 32), "2": (28, 32), "3": (0, 32)}
    with (before / OUTCOMES_FILE).open("a") as file:
        file.write(StepOutcomes(85, counts).to_json())
    # The stage first writes its inputs. Then it finds no optimizer to continue.
    with pytest.raises(UserError, match="has no optimizer state beside it"):
        list(pipeline.train_stages({3: recipe}, before / "model", rows, run))
    rows_left = read_rows(run / "stage3" / "train.parquet")
    assert [each["extra_info"]["id"] for each in rows_left] == ["2", "3", "4"]
    outcomes = outcomes_of(run / "stage3" / "model")
    assert outcomes is not None
    assert [(each.step, each.counts) for each in outcomes.steps] == [(0, {"2": (28, 32), "3": (0, 32)})]


def test_a_training_that_leaves_out_problems_by_outcomes_it_will_not_have_is_refused_before_it_begins(
    tmp_path: Path,
) -> None:
    model = tmp_path / "sft" / "model"
    both = ["stage3.solved_by=outcomes", "stage2.optim.state=fresh"]
    check_outcomes(stage_recipes([2, 3], None, both), model)
    with pytest.raises(UserError, match=r'solved_by = "outcomes" needs .*sft/outcomes\.jsonl'):
        check_outcomes(stage_recipes([3], None, ["solved_by=outcomes"]), model)
    with pytest.raises(UserError, match=r"reward = boxed, but the stage before has reward = paper"):
        check_outcomes(stage_recipes([2, 3], None, [*both, "stage3.reward=boxed"]), model)
    model.mkdir(parents=True)
    begin(model.parent, ["0"], "boxed", tmp_path / "no" / "model")
    with (model.parent / OUTCOMES_FILE).open("a") as file:
        file.write(StepOutcomes(1, {"0": (1, 8)}).to_json())
    with pytest.raises(UserError, match=r"has outcomes of reward = boxed, but the recipe has paper"):
        check_outcomes(stage_recipes([3], None, ["solved_by=outcomes"]), model)


@needs("torch")
def test_verdicts_are_looked_at_before_the_first_stage(model: Path, tmp_path: Path) -> None:
    """Covers missing verdicts, which a stage would notice only after hours, and verdicts that no stage uses."""
    data = write_problems(tmp_path / "train.parquet", short=4, long=1)
    verdicts = tmp_path / "solved" / VERDICTS
    changes = ["rollout.prompts=3", "rollout.prompt_tokens=600", "stage2.optim.state=fresh"]

    def plan_of(numbers: list[int], *more: str) -> TrainPlan:
        recipes = stage_recipes(numbers, None, [*changes, *more])
        return plan_training(recipes, model, data, verdicts.parent, JudgeChoice("http://judge"))

    write_verdicts(verdicts, ((problem, sample, "wrong") for problem in "012" for sample in range(8)))
    with pytest.raises(UserError, match=r"--solved .*solved: problem 3 has 0 samples, but 8 are needed"):
        plan_of([1, 2, 3])
    write_verdicts(verdicts, (("3", sample, "correct") for sample in range(8)))
    assert plan_of([1, 2, 3]).solved == verdicts.parent, (
        "the fifth problem's prompt is too long for any stage"
    )
    with pytest.raises(UserError, match="9 are needed"):
        plan_of([1, 2, 3], "stage3.drop_solved=9")
    for numbers, more in (([1, 2], ()), ([1, 2, 3], ("drop_solved=0",))):
        with pytest.raises(UserError, match=r"no stage of this run leaves out solved problems \(drop_solved"):
            plan_of(numbers, *more)


def stage2(ranks: int = 2, lr: float = 1e-6, weight_decay: float = 0.01) -> StageRecipe:
    optim = [f"optim.lr={lr}", f"optim.weight_decay={weight_decay}"]
    return stage_recipe(2, None, [f"hardware.gpus_per_node={ranks}", *optim])


@pytest.fixture
def stage1(tmp_path: Path) -> Path:
    """VERL's last checkpoint of a stage on two ranks. It has only the files that are read."""
    actor = tmp_path / "stage1" / "checkpoints" / "global_step_12" / "actor"
    actor.mkdir(parents=True)
    for rank in range(2):
        (actor / f"optim_world_size_2_rank_{rank}.pt").touch()
    for name in ("global_step_9", "global_step_13.bak"):
        (tmp_path / "stage1" / "checkpoints" / name).mkdir()
    write_json(tmp_path / "stage1" / "optimizer.json", stage2().optim.model_dump())
    return actor


def test_a_stage_continues_the_optimizer_of_the_one_that_made_its_model(tmp_path: Path, stage1: Path) -> None:
    model, folder = tmp_path / "stage1" / "model", tmp_path / "stage2"
    for _ in range(2):
        continue_optimizer(model, folder, stage2())
    checkpoints = folder / "checkpoints"
    assert (checkpoints / "global_step_0" / "actor").resolve() == stage1
    assert (checkpoints / POINTER).read_text() == "0"
    # A checkpoint of the stage itself has precedence.
    (checkpoints / "global_step_3").mkdir()
    (checkpoints / "global_step_3" / "data.pt").touch()
    (checkpoints / POINTER).write_text("3")
    continue_optimizer(model, folder, stage2())
    assert (checkpoints / POINTER).read_text() == "3"


def test_an_optimizer_that_cannot_be_continued_is_one_message(tmp_path: Path, stage1: Path) -> None:
    model, folder = tmp_path / "stage1" / "model", tmp_path / "stage2"
    for recipe, message in (
        (stage2(ranks=8), "was not written by 8 ranks"),
        (stage2(lr=2e-6), r"optim.lr = 2e-06, but .*/actor was trained with 1e-06"),
        (stage2(weight_decay=0.5), r"optim.weight_decay = 0.5, but .*/actor was trained with 0.01"),
    ):
        with pytest.raises(UserError, match=message) as excinfo:
            continue_optimizer(model, folder, recipe)
        assert "--set optim.state=fresh" in excinfo.value.hint
    assert not folder.exists()
    continue_optimizer(model, folder, stage2())
    shutil.rmtree(tmp_path / "stage1")
    # The stage was killed before its first checkpoint, and the stage before it was removed.
    with pytest.raises(UserError, match="has no optimizer state beside it"):
        continue_optimizer(model, folder, stage2())


@needs("torch")
def test_a_training_that_begins_with_a_continued_stage_is_refused_before_it_begins(
    model: Path, tmp_path: Path
) -> None:
    write_problems(tmp_path / "train.parquet", short=512, long=0)
    with pytest.raises(
        UserError, match=r"optim.state = continued, but .*/model has no optimizer state beside it"
    ):
        plan_training({2: stage2()}, model, tmp_path / "train.parquet", None, JudgeChoice())


def test_a_stage_that_continues_an_optimizer_has_its_settings() -> None:
    for change in ("stage2.optim.lr=2e-6", "stage1.optim.weight_decay=0.1"):
        with pytest.raises(UserError, match=r"stage 2 continues stage 1's optimizer and so keeps optim\."):
            stage_recipes([1, 2, 3], None, [change])
        stage_recipes([1, 2, 3], None, [change, "stage2.optim.state=fresh"])
    stage_recipes([1, 2, 3], None, ["optim.lr=2e-6", "stage3.optim.lr=1e-6"])


def test_a_stage_has_the_format_of_the_one_before() -> None:
    """A stage's model has the format that it was trained in."""
    with pytest.raises(UserError, match=r"stage 2 starts from stage 1's model .*: it cannot use release"):
        stage_recipes([1, 2], None, ["stage2.format=release"])
    with pytest.raises(UserError, match=r"keeps its format, release: it cannot use another"):
        stage_recipes([1, 2, 3], None, ["stage1.format=release"])
    stage_recipes([1, 2, 3], None, ["format=release"])
    stage_recipes([1, 2, 3], None, ["format=''"])
    stage_recipes([2], None, ["stage2.format=release"])


def test_a_stage_that_continues_an_optimizer_has_its_ranks() -> None:
    """The error comes before stage 1 instead of after it.

    VERL needs as many ranks to read AdamW's state as wrote it.
    """
    change = "stage2.hardware.nodes=4"
    with pytest.raises(UserError, match=r"which is saved by 64 ranks .*: it cannot use 32"):
        stage_recipes([1, 2], "64xh100", [change])
    stage_recipes([1, 2], "64xh100", [change, "stage2.optim.state=fresh"])
    stage_recipes([1, 2], "64xh100", [change, "stage2.hardware.gpus_per_node=16"])
    stage_recipes([1, 2, 3], "64xh100", ["stage3.hardware.nodes=4"])


@needs("torch")
def test_problems_that_a_stage_is_measured_on_are_read_before_it_begins_and_rolled_out_as_often_as_asked(
    model: Path, tmp_path: Path
) -> None:
    rows = rl_rows([Problem(str(number), "How many?", "7") for number in range(4)], 8, "made")
    write_parquet(tmp_path / "train.parquet", rows)
    write_parquet(tmp_path / "held.parquet", rows[:2])
    changes = ["rollout.prompts=4", "rollout.rollouts=8", "groups.keep=4", "held_out.samples=3"]
    missing = stage_recipe(1, None, [*changes, f"held_out.data={tmp_path / 'gone.parquet'}"])
    with pytest.raises(UserError, match=r"gone\.parquet"):
        plan_training({1: missing}, model, tmp_path / "train.parquet", None, JudgeChoice("http://judge"))
    recipe = stage_recipe(1, None, [*changes, f"held_out.data={tmp_path / 'held.parquet'}"])
    write_stage_inputs(recipe, model, rows, tmp_path / "stage1", ("http://judge", None))
    counts = {
        name: [row["__rollout_n__"] for row in read_rows(tmp_path / "stage1" / f"{name}.parquet")]
        for name in ("train", "held_out")
    }
    assert counts == {"train": [8] * 4, "held_out": [3] * 2}
    argv = stage_command(recipe, tmp_path / "stage1", model).argv
    assert "trainer.test_freq=10" in argv
    assert f"data.val_files='{tmp_path / 'stage1' / 'held_out.parquet'}'" in argv


def test_models_are_made_of_saved_steps_only() -> None:
    with pytest.raises(UserError, match="export_every = 15 is not a multiple of every = 10"):
        stage_recipe(1, None, ["checkpoint.export_every=15"])
    assert stage_recipe(1, None, ["checkpoint.export_every=20", "steps=50"]).exported_models == 2


def phase(folder: Path, code: str, steps: int, **checkpoint: int) -> tuple[Start, list[str]]:
    """Returns a phase whose trainer is a program, and the list of its warnings."""
    warnings: list[str] = []
    start = Start(
        command=Command(
            [sys.executable, "-c", code], {"VERL_FILE_LOGGER_PATH": str(folder / "metrics-1.jsonl")}
        ),
        folder=folder,
        steps=steps,
        base=folder / "base",
        log=folder / "log",
        hardware=Hardware(),
        checkpoint=CheckpointSettings(every=2, **checkpoint),
        timer=PhaseTimer(folder),
        warn=warnings.append,
    )
    return start, warnings


def two_steps(folder: Path, metric: str = "rstar2/pass_rate", **checkpoint: int) -> tuple[Start, list[str]]:
    """Returns a phase whose trainer writes two steps and an empty checkpoint, and the list of its warnings.

    The metric of the second step is NaN, which VERL writes as null.
    """
    code = (
        "import json, os\n"
        f"os.makedirs({str(folder / 'checkpoints' / 'global_step_2')!r})\n"
        f"open({str(folder / 'checkpoints' / POINTER)!r}, 'w').write('2')\n"
        f"data = [{{{metric!r}: value}} for value in (0.5, None)]\n"
        "lines = [json.dumps({'step': n, 'data': each}) + '\\n' for n, each in enumerate(data, 1)]\n"
        f"open({str(folder / 'metrics-1.jsonl')!r}, 'w').write(''.join(lines))"
    )
    return phase(folder, code, 2, **checkpoint)


def test_a_full_disk_is_one_message_and_no_traceback(tmp_path: Path) -> None:
    start, _ = two_steps(tmp_path)

    def on_step(step: int, metrics: dict[str, float]) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "runs/rl/steps.csv")

    with pytest.raises(Failure, match=r"runs/rl/steps\.csv: No space left on device") as excinfo:
        train(start, on_step)
    assert "continues from the last checkpoint" in excinfo.value.hint


def test_a_disk_that_is_full_before_the_trainer_starts_is_one_message_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(command: Command, *args: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), command.argv[-1])

    whole_checkpoints(monkeypatch)
    save_checkpoints(tmp_path, 2)
    monkeypatch.setattr(stages, "run_export", full)
    start, _ = phase(tmp_path, "raise SystemExit", 4, export_every=2)
    with pytest.raises(Failure, match=r"step-2\.part: No space left on device") as excinfo:
        train(start, lambda step, metrics: None)
    assert "continues from the last checkpoint" in excinfo.value.hint


def test_a_start_without_room_for_a_checkpoint_is_refused_before_the_trainer_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole_checkpoints(monkeypatch)
    with small_disk(tmp_path / "disk", 8 << 20) as disk:
        save_checkpoints(disk, 2)
        (disk / "checkpoints" / "global_step_2" / "model.pt").write_bytes(bytes(5 << 20))
        start, _ = phase(disk, f"open({str(tmp_path / 'started')!r}, 'w')", 4)
        with pytest.raises(
            UserError, match=r"next checkpoint needs 5 MiB, but .* has 3 MiB for it"
        ) as excinfo:
            train(start, lambda step, metrics: None)
        assert "checkpoint.keep" in excinfo.value.hint
        assert not (tmp_path / "started").exists()
        resize(disk, 64 << 20)
        with contextlib.suppress(Failure):  # this trainer saves nothing
            train(start, lambda step, metrics: None)
        assert (tmp_path / "started").exists()


def fails(*args: object) -> None:
    """Stands in for the export of a checkpoint, and fails."""
    raise Failure("making the model of a checkpoint ended with exit code 1: the reason")


@pytest.mark.parametrize("metric", ["rstar2/pass_rate", "train/loss"])
def test_a_measurement_that_is_not_a_number_ends_no_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, metric: str
) -> None:
    monkeypatch.setattr(stages, "run_export", fails)
    start, _ = two_steps(tmp_path, metric)
    losses: list[str] = []
    with pytest.raises(Failure, match="the reason"):  # no checkpoint exists for an export
        train(start, lambda step, metrics: losses.append(f"{metrics[metric]:.1f}"))
    assert losses == ["0.5", "nan"]


def test_a_model_on_the_way_that_cannot_be_made_ends_no_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stages, "run_export", fails)
    start, warnings = two_steps(tmp_path, export_every=2)
    steps: list[int] = []
    with pytest.raises(Failure, match="the reason"):  # the user needs the last model
        train(start, lambda step, metrics: steps.append(step))
    assert steps == [1, 2]
    assert warnings == [
        "making the model of a checkpoint ended with exit code 1: the reason; step 2 has no model"
    ]


def save_checkpoints(folder: Path, *steps: int) -> None:
    """Creates checkpoints whose models are not exported yet."""
    for step in steps:
        (folder / "checkpoints" / f"global_step_{step}").mkdir(parents=True)
        (folder / "checkpoints" / POINTER).write_text(str(step))


def whole_checkpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stages, "choose_checkpoint", lambda checkpoints, warn: None)


def checkpoint_steps(folder: Path) -> list[int]:
    return steps_of(folder / "checkpoints")


def models(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "models").iterdir())


@needs("torch")
def test_models_that_a_kill_left_out_are_made_before_their_checkpoints_are_removed(
    tmp_path: Path, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer.save_pretrained(tmp_path / "base")
    whole_checkpoints(monkeypatch)
    save_checkpoints(tmp_path, 2, 3, 4, 6, 7)
    (tmp_path / "checkpoints" / "global_step_8").mkdir()  # a checkpoint that was not complete
    (tmp_path / "models" / "step-2").mkdir(parents=True)
    (tmp_path / "models" / ".step-4.part").mkdir()
    models_made: list[str] = []

    def export(command: Command, *args: object) -> None:
        checkpoint = Path(command.argv[-2])
        assert checkpoint.is_dir()
        models_made.append(checkpoint.name)

    monkeypatch.setattr(stages, "run_export", export)
    start, warnings = phase(tmp_path, "raise AssertionError", 7, keep=1, export_every=2)
    train(start, lambda step, metrics: pytest.fail("no step is left"))
    assert models_made == ["global_step_4", "global_step_6", "global_step_7"]
    assert (models(tmp_path), warnings) == (["step-2", "step-4", "step-6"], [])
    assert checkpoint_steps(tmp_path) == [7, 8]


@needs("torch")
def test_a_trainer_that_saves_faster_than_models_are_made_loses_none(
    tmp_path: Path, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer.save_pretrained(tmp_path / "base")
    lines = [json.dumps({"step": step, "data": {"rstar2/pass_rate": 0.5}}) + "\n" for step in (2, 4, 6)]
    pointer = tmp_path / "checkpoints" / POINTER
    code = (
        "import os, time\n"
        f"pointer, file = {str(pointer)!r}, open({str(tmp_path / 'metrics-1.jsonl')!r}, 'w', 1)\n"
        f"os.makedirs({str(tmp_path / 'checkpoints' / 'global_step_2')!r})\n"
        "open(pointer, 'w').write('2')\n"
        f"file.write({lines[0]!r})\n"
        "while open(pointer).read() != '6': time.sleep(0.01)\n"
        f"file.write({lines[1]!r} + {lines[2]!r})\n"
    )

    def export(command: Command, *args: object) -> None:
        checkpoint = Path(command.argv[-2])
        assert checkpoint.is_dir()
        if checkpoint.name == "global_step_2":
            save_checkpoints(tmp_path, 4, 6)

    monkeypatch.setattr(stages, "run_export", export)
    start, warnings = phase(tmp_path, code, 6, keep=1, export_every=2)
    steps: list[int] = []
    assert train(start, lambda step, metrics: steps.append(step)) == tmp_path / "model"
    assert (steps, models(tmp_path), warnings) == ([2, 4, 6], ["step-2", "step-4", "step-6"], [])
    assert checkpoint_steps(tmp_path) == [6]


STOPPABLE = """
import json, os, pathlib, time
stage = pathlib.Path({stage!r})
pointer = stage / "checkpoints" / {pointer!r}
step = 1 + int(pointer.read_text()) if pointer.exists() else 1
(stage / {progress!r}).write_text("{{}}")
while step == 1 and not (stage / {stop!r}).exists(): time.sleep(0.01)
(stage / "checkpoints" / f"global_step_{{step}}").mkdir(parents=True)
pointer.write_text(str(step))
line = {{"step": step, "data": {{"rstar2/pass_rate": 0.5}}}}
pathlib.Path(os.environ["VERL_FILE_LOGGER_PATH"]).write_text(json.dumps(line) + "\\n")
"""


@needs("torch")
def test_a_stage_that_a_signal_stops_is_saved_without_a_model_and_the_same_call_continues(
    tmp_path: Path, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer.save_pretrained(tmp_path / "base")
    whole_checkpoints(monkeypatch)
    monkeypatch.setattr(stages, "run_export", lambda *args: None)
    code = STOPPABLE.format(stage=str(tmp_path), pointer=POINTER, progress=PROGRESS_FILE, stop=STOP_FILE)
    start, warnings = phase(tmp_path, code, 2)
    steps: list[int] = []

    def signalled() -> None:
        wait_until((tmp_path / PROGRESS_FILE).exists)
        os.kill(os.getpid(), signal.SIGTERM)

    sender = threading.Thread(target=signalled)
    sender.start()
    with pytest.raises(SystemExit) as excinfo:
        train(start, lambda step, metrics: steps.append(step))
    sender.join(TIMEOUT_S)
    assert excinfo.value.code == 75
    assert [text.split(":")[0] for text in warnings] == ["SIGTERM"]
    assert (steps, checkpoint_steps(tmp_path), is_done(tmp_path)) == ([1], [1], False)
    env = {"VERL_FILE_LOGGER_PATH": str(tmp_path / "metrics-2.jsonl")}
    again = replace(start, command=Command(start.command.argv, env))
    assert train(again, lambda step, metrics: steps.append(step)) == tmp_path / "model"
    assert (steps, checkpoint_steps(tmp_path), is_done(tmp_path)) == ([1, 2], [1, 2], True)


def test_a_model_that_cannot_be_made_at_the_start_is_a_warning_and_its_checkpoint_is_kept_no_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole_checkpoints(monkeypatch)
    save_checkpoints(tmp_path, 2, 3)
    monkeypatch.setattr(stages, "run_export", fails)
    start, warnings = phase(tmp_path, "raise SystemExit", 3, keep=1, export_every=2)
    with pytest.raises(Failure, match="the reason"):
        train(start, lambda step, metrics: None)
    assert [text.rpartition("; ")[2] for text in warnings] == ["step 2 has no model"]
    assert checkpoint_steps(tmp_path) == [3]


def test_a_trainer_that_ends_too_early_makes_no_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole_checkpoints(monkeypatch)
    save_checkpoints(tmp_path, 2, 3)
    start, _ = phase(tmp_path, "raise SystemExit", 4)
    with pytest.raises(Failure, match="ended with global_step_3, before step 4"):
        train(start, lambda step, metrics: None)
    assert not is_done(tmp_path)


def test_verl_removes_no_checkpoint_whose_model_is_still_to_be_made(tmp_path: Path) -> None:
    for every, keep in ((0, 2), (10, "null")):
        recipe = stage_recipe(1, None, [f"checkpoint.export_every={every}"])
        argv = stage_command(recipe, tmp_path / "stage1", tmp_path).argv
        assert f"trainer.max_actor_ckpt_to_keep={keep}" in argv
