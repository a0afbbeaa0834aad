"""Runs one stage of training in its own folder: from a model and data to a new model.

```
FOLDER/
  train.parquet         the problems of the stage (RL only)
  held_out.parquet      problems to evaluate the policy on, if the recipe names some (RL only)
  agent_loop.yaml       settings of our agent loop, for VERL (RL only)
  router.yaml           settings of our rollout scheduler, for VERL (RL with several engines, or an asynchronous mode)
  rstar2_format.json    the format of the rollouts (RL only)
  checkpoints/          VERL's checkpoints. A killed stage resumes from the last checkpoint. If the stage continues the
                        optimizer of the stage before, global_step_0 is the last checkpoint of the stage before
  metrics-1.jsonl …     metrics: one file each time the trainer is started, one line per step
  finished-rollouts/    finished rollouts of the step after the last checkpoint, see
                        `rstar2.train.records.finished_rollouts` (RL in sync mode only)
  outcomes.jsonl        number of correct rollouts of each problem, see `rstar2.train.records.outcome_log` (RL only)
  rollouts.json         progress of the current step, see `rstar2.train.records.progress` (RL only)
  alive.json            current activity of the trainer, see `rstar2.train.records.progress`
  decision.json         a rule's decision to end the stage, see `rstar2.train.rules` (RL only)
  stop_after_step       asks the trainer to save and end after the current step, see `rstar2.train.stopping`
  final_error.json      an error that ended training at once, see `rstar2.train.records.final_error`
  alarms.jsonl          signs of collapse, see `rstar2.train.records.alarms` (RL only)
  worker_secrets.json   keys and tokens for workers on other nodes; exists only while the trainer runs, and only this
                        user can read it
  timing.json           wall-clock seconds that each part took, see `rstar2.train.records.timing`
  steps_before.json     number of steps of all earlier stages, see `rstar2.train.records.steps` (RL only)
  train.npy train.arrow validation.npy validation.arrow
                        the conversations, and their split into training and validation, see `rstar2.train.split`
                        (SFT only)
  held_out/step-500/ …  samples of held-out problems by the models of some steps, see `rstar2.train.choose` (SFT only)
  chosen.json           the step whose model is returned, and the reason (SFT only)
  models/step-20/ …     models of earlier steps, if the recipe asks for them
  model/                the finished model; the folder appears complete. A stage that has a finished model is not
                        run again
```
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from rstar2.data.parquet import write_parquet
from rstar2.errors import Failure, UserError
from rstar2.files import whole_folder, write_json, write_text
from rstar2.loop.formats.format import Format, save_format
from rstar2.loop.model_folder import write_format
from rstar2.loop.turns.choose import load_codec
from rstar2.loop.turns.codec import ChatCodec
from rstar2.train.answers import readable_rows
from rstar2.train.choose import best_so_far, choose, held_out_steps, results_of, step_model
from rstar2.train.command import (
    ROUTER_FILE,
    SFT_KEEP,
    Command,
    agent_loop_yaml,
    router_yaml,
    secrets_file,
    sft_command,
)
from rstar2.train.decision import DECISION_FILE, read_decision
from rstar2.train.launch import SignsOfLife, run_export, run_trainer
from rstar2.train.recipe import CheckpointSettings, Hardware, OptimSettings, SftRecipe, StageRecipe
from rstar2.train.records import finished_rollouts, outcome_log
from rstar2.train.records.final_error import FINAL_ERROR_FILE
from rstar2.train.records.progress import ACTIVITY_FILE, PROGRESS_FILE, FaultWarner
from rstar2.train.records.steps import MAIN_METRIC, SFT_METRIC, VALIDATION_METRIC, with_nan
from rstar2.train.records.timing import PhaseTimer, TrainerTimer
from rstar2.train.rules import StageRules
from rstar2.train.sampling import JudgeAddress, Rows
from rstar2.train.trainer.causes import OWN_PREFIX
from rstar2.train.trainer.checkpoints import (
    BEFORE,
    POINTER,
    actor_of,
    choose_checkpoint,
    fault,
    finished_steps,
    last_checkpoint,
    prune,
    saved_step,
    steps_of,
)
from rstar2.train.trainer.disk_space import disk_space_warning, require_disk_space

OnStep = Callable[[int, dict[str, float]], None]
"""Called with a step's number, from 1, and the step's metrics. A metric that VERL could not compute is NaN."""

DONE_BEFORE = "done before"
OPTIMIZER_FILE = "optimizer.json"
"""The file with the optimizer's settings in a stage's folder. If a later stage continues the optimizer, its recipe is
compared with these settings."""
_STEP_METRICS = {MAIN_METRIC, SFT_METRIC}
"""The line of a training step contains one of these two metrics: the pass rate in RL, or the training loss in SFT. A
line with only validation metrics contains neither the pass rate nor the training loss."""
_FOR_WORKERS = ("VERL_USE_EXTERNAL_MODULES", "RSTAR2_SECRETS_FILE")


class PhaseProgress(Protocol):
    """Shows the phases of a run, one row per phase. `name` identifies the row. The text of the row changes as the phase
    runs."""

    def start(self, name: str, title: str, total: int) -> None: ...

    def update(self, name: str, done: int, text: str) -> None: ...

    def finish(self, name: str, text: str) -> None: ...

    def warn(self, text: str) -> None: ...


@dataclass(frozen=True)
class Start:
    """The settings for starting a phase's trainer."""

    command: Command
    folder: Path
    steps: int
    """Number of steps of the whole phase."""
    base: Path
    """The model that the phase starts from."""
    log: Path
    hardware: Hardware
    checkpoint: CheckpointSettings
    timer: PhaseTimer
    warn: Callable[[str], None]
    """Writes a warning to the terminal and the log, see `warner`."""
    keeps_rollouts: bool = False
    """Whether finished rollouts are stored for a resumed run, see `rstar2.train.records.finished_rollouts`."""
    needed_steps: Callable[[], Collection[int]] | None = None
    """Returns the steps whose checkpoints must not be removed, however old the checkpoints are. If this function is
    set, VERL itself removes no checkpoints."""
    rules: StageRules | None = None
    """Rules that may end the phase before its last step."""

    @property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoints"

    @property
    def end(self) -> int | None:
        """The step whose checkpoint is the result of the phase; None if the phase must continue training."""
        saved = saved_step(self.checkpoints) or 0
        decision = self.rules.decision if self.rules else None
        if decision is not None and decision.model_step is not None:
            return decision.model_step
        return saved if saved == self.steps or (decision is not None and saved >= decision.step) else None


def warner(progress: PhaseProgress, log: Path) -> Callable[[str], None]:
    """Returns a function that shows a warning to the user and writes it to the trainer's log."""

    def warn(text: str) -> None:
        progress.warn(text)
        _write_log(log, f"warning: {text}")

    return warn


def _write_log(log: Path, text: str) -> None:
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a", encoding="utf-8") as file:
        file.write(f"{OWN_PREFIX}{text}\n")


@dataclass(frozen=True)
class SftInput:
    """The model and the data of stage 0."""

    recipe: SftRecipe
    model: Path
    data: Path
    """The folder with the files that `rstar2.train.split.Split.write` writes."""
    conversations: int
    """Number of conversations to train on."""
    validation: int = 0
    """Number of conversations on which the validation loss is measured."""


EvaluateStep = Callable[[int, Path], None]
"""Samples the held-out problems with the model of an SFT step. The arguments are the step and the model's folder."""


def run_sft(
    inputs: SftInput,
    folder: Path,
    logs: Path,
    progress: PhaseProgress,
    timer: PhaseTimer,
    trainer_env: Callable[[Hardware], Mapping[str, str]] | None = None,
    evaluate: EvaluateStep | None = None,
) -> Path:
    """Runs stage 0, which fine-tunes a model. Returns the folder of the chosen step's model (`rstar2.train.choose`).

    Args:
        inputs: the model and the data.
        folder: the stage's folder.
        logs: the folder for the trainer's log.
        trainer_env: see `rstar2.train.pipeline.Pipeline`.
        evaluate: called for each step that the recipe evaluates. For an evaluation, the trainer saves a checkpoint and
            ends. After the evaluation, the trainer is started again.

    Raises:
        Failure: the trainer failed.
    """
    recipe = inputs.recipe
    steps = inputs.conversations // recipe.batch * recipe.epochs
    progress.start("sft", "stage 0: SFT", steps)
    if is_done(folder):
        progress.finish("sft", DONE_BEFORE)
        return folder / "model"

    def on_step(step: int, metrics: dict[str, float]) -> None:
        progress.update("sft", step, _losses(metrics))

    log = logs / "sft.log"
    warn = warner(progress, log)
    saved = CheckpointSettings(
        every=recipe.checkpoint_every, every_minutes=recipe.checkpoint_every_minutes, keep=SFT_KEEP
    )

    def needed_steps() -> list[int]:
        best = best_so_far(recipe, folder, steps) if recipe.chosen_by == "validation" else None
        return [] if best is None else [best]

    def start_until(step: int) -> Start:
        command = sft_command(
            recipe, folder, inputs.model, inputs.data, next_metrics(folder), bool(inputs.validation),
            stop_after=step if step < steps else None,
        )  # fmt: skip
        if trainer_env:
            command.env.update(trainer_env(recipe.hardware))
        return Start(
            command, folder, step, inputs.model, log, recipe.hardware, saved, timer, warn,
            needed_steps=needed_steps,
        )  # fmt: skip

    with _disk_failures(folder):
        for step in held_out_steps(recipe, steps) if evaluate else ():
            if evaluate and results_of(folder, step) is None:
                start = start_until(step)
                model = step_model(start.folder, step)
                _export(start, _trained(start, on_step), model)
                evaluate(step, model)
                _keep_best_model(recipe, folder, steps)
        start = start_until(steps)
        _trained(start, on_step)
        choice = choose(recipe, folder, steps)
        _write_log(log, f"the model comes from {choice.text}")
        _finish_with_model(start, choice.step)
    progress.finish(
        "sft", f"{inputs.conversations} conversations, {steps} steps; the model comes from {choice.text}"
    )
    return folder / "model"


def _losses(metrics: dict[str, float]) -> str:
    validation_loss = metrics.get(VALIDATION_METRIC)
    validation = "" if validation_loss is None else f", validation loss {validation_loss:.3f}"
    return f"loss {metrics['train/loss']:.3f}{validation}"


def _keep_best_model(recipe: SftRecipe, folder: Path, steps: int) -> None:
    """Removes the models of evaluated steps, except the model that would be chosen if SFT ended now."""
    best = best_so_far(recipe, folder, steps) if recipe.chosen_by == "held_out" else None
    for model in (folder / "models").glob("step-*"):
        if model.name != f"step-{best}":
            shutil.rmtree(model)


def _finish_with_model(start: Start, step: int) -> None:
    """Makes the chosen step's model the model of the stage. The chosen step's model exists already if the step was
    evaluated."""
    exported = step_model(start.folder, step)
    if exported.is_dir():
        exported.rename(start.folder / "model")
    else:
        _export(start, start.checkpoints / f"global_step_{step}", start.folder / "model")
    shutil.rmtree(start.folder / "models", ignore_errors=True)


def write_stage_inputs(
    recipe: StageRecipe, model: Path, rows: Rows, folder: Path, judge: JudgeAddress
) -> None:
    """Writes to the stage's folder the files that the trainer of an RL stage reads.

    Raises UserError if too few problems have a prompt within `rollout.prompt_tokens`.
    """
    codec, longest = load_codec(model), recipe.rollout.prompt_tokens
    # The recipe decides the number of rollouts, whatever number the data was prepared for.
    files = [("train.parquet", "the training data", rows, recipe.rollout.rollouts, recipe.rollout.prompts)]
    if recipe.held_out.data:
        held_out, _ = readable_rows(Path(recipe.held_out.data), recipe.held_out.samples)
        files.append(("held_out.parquet", recipe.held_out.data, held_out, recipe.held_out.samples, 1))
    for name, data, problems, rollouts, needed in files:
        problems = fitting(problems, codec, longest)
        check_enough(len(problems), needed, longest, data)
        write_parquet(folder / name, [{**row, "__rollout_n__": rollouts} for row in problems])
        if name == "train.parquet":
            ids = [row["extra_info"]["id"] for row in problems]
            outcome_log.begin(folder, ids, recipe.reward, model)
    save_format(codec.format, folder)
    write_json(folder / OPTIMIZER_FILE, recipe.optim.model_dump())
    # Only this user may read the file, because it contains the judge's token.
    write_text(folder / "agent_loop.yaml", agent_loop_yaml(recipe, folder, *judge), mode=0o600)
    if recipe.schedules_sessions:
        write_text(folder / ROUTER_FILE, router_yaml(recipe))


def in_format(rows: Rows, fmt: Format) -> Rows:
    """Returns the rows with their prompts written in a format. A row that does not contain the text of its problem
    keeps its prompt."""
    texts = [(row.get("extra_info") or {}).get("problem") for row in rows]
    return [
        row if text is None else {**row, "prompt": fmt.messages(text)}
        for row, text in zip(rows, texts, strict=True)
    ]


def fitting(rows: Rows, codec: ChatCodec, prompt_tokens: int) -> Rows:
    """Writes the prompts of the rows in the codec's format, and returns the rows whose prompt has at most
    `prompt_tokens` tokens."""
    formatted = in_format(rows, codec.format)
    lengths = prompt_lengths(formatted, codec)
    return [row for row, length in zip(formatted, lengths, strict=True) if length <= prompt_tokens]


def prompt_lengths(rows: Rows, codec: ChatCodec) -> list[int]:
    """Returns the number of tokens of each row's prompt in the codec's format."""
    return [len(codec.prompt(list(row["prompt"]))) for row in in_format(rows, codec.format)]


def check_enough(count: int, needed: int, prompt_tokens: int, data: str) -> None:
    """Raises UserError if fewer problems than `needed` have a prompt of at most `prompt_tokens` tokens.

    Args:
        count: number of problems whose prompt has at most `prompt_tokens` tokens.
        data: the name of the data, for the message.
    """
    if count < needed:
        lower = ", or lower rollout.prompts" if needed > 1 else ""
        raise UserError(
            f"{data} has {count} problems whose prompt has at most rollout.prompt_tokens = {prompt_tokens} tokens, "
            f"but {needed} are needed",
            f"Raise rollout.prompt_tokens{lower}.",
        )


def is_done(folder: Path) -> bool:
    """Whether a stage's folder contains its finished model."""
    return (folder / "model").is_dir()


def train(start: Start, on_step: OnStep) -> Path:
    """Runs a VERL trainer in a phase's folder until training is finished. Returns the folder of the new model.

    The trainer resumes from the last complete checkpoint. If the model of an earlier step cannot be exported, the user
    only gets a warning.

    Raises:
        Failure: the trainer failed or hung, or the last model cannot be exported.
        UserError: the disk has no space for the next checkpoint.
    """
    with _disk_failures(start.folder):
        _export(start, _trained(start, on_step), start.folder / "model")
    return start.folder / "model"


@contextmanager
def _disk_failures(folder: Path) -> Iterator[None]:
    """Turns an OSError into a Failure with advice."""
    try:
        yield
    except OSError as error:
        raise Failure(
            f"{error.filename or folder}: {error.strerror or error}",
            "If the disk is full, free disk space; the same command continues from the last checkpoint.",
        ) from error


def _trained(start: Start, on_step: OnStep) -> Path:
    """Trains up to the last step of `start`, unless the checkpoint of that step exists already. Returns the checkpoint
    that is the result of the phase.

    The result is the checkpoint of the last step, or the checkpoint to which a rule of the recipe went back.
    """
    folder, checkpoints = start.folder, start.checkpoints
    choose_checkpoint(checkpoints, start.warn)
    folder.mkdir(parents=True, exist_ok=True)
    failed: set[int] = set()
    _export_and_prune(start, failed)
    trainer_timer = TrainerTimer(start.timer)
    resumed_from = saved_step(checkpoints) or 0
    outcome_log.forget_after(folder, resumed_from)
    warned = False

    def warn_of_disk() -> None:
        """Warns when disk space becomes short, so that the user has time to free disk space. The warning is not
        repeated while disk space stays short."""
        nonlocal warned
        warning = disk_space_warning(checkpoints, _removed_before_next_save(start, resumed_from))
        if warning and not warned:
            start.warn(warning)
        warned = warning is not None

    def on_line(line: dict[str, Any]) -> None:
        step, data = int(line["step"]), with_nan(line["data"])
        if _STEP_METRICS.isdisjoint(data):
            return
        trainer_timer.on_step(data)
        on_step(step, data)
        _export_and_prune(start, failed)
        if step < start.steps:
            warn_of_disk()

    # If a run was killed while it exported the model, training is already done.
    if start.end is None:
        require_disk_space(checkpoints)
        _prepare_finished_rollouts(start)
        for old_file in (PROGRESS_FILE, ACTIVITY_FILE, FINAL_ERROR_FILE):
            (folder / old_file).unlink(missing_ok=True)
        metrics = Path(start.command.env["VERL_FILE_LOGGER_PATH"])
        with secrets_file(start.command, os.environ):
            faults = FaultWarner(folder / PROGRESS_FILE, start.warn)
            signs = SignsOfLife(metrics, folder, start.hardware.hung_after_s, faults.look)
            run_trainer(start.command, start.log, signs, on_line, start.warn)
    checkpoint = _final_checkpoint(start)
    if start.rules:
        start.rules.ended(saved_step(checkpoints) or 0)
    finished_rollouts.forget(folder)
    return checkpoint


def _final_checkpoint(start: Start) -> Path:
    """Returns the checkpoint with which a phase ends. Raises Failure if the checkpoint is missing or damaged."""
    last, end = last_checkpoint(start.checkpoints), start.end
    if last is None:
        raise Failure(
            f"the trainer left no checkpoint in {start.checkpoints}",
            f"Look for the reason in its log: {start.log}",
        )
    if end is None:
        raise Failure(
            f"the trainer ended with {last.name}, before step {start.steps}",
            f"Look for the reason in its log: {start.log}",
        )
    checkpoint = start.checkpoints / f"global_step_{end}"
    if checkpoint != last and (damage := fault(checkpoint)):
        raise Failure(
            f"the stage went back to step {end}, whose checkpoint is damaged: {damage}",
            f"Remove {start.folder / DECISION_FILE} to continue training from the last checkpoint.",
        )
    return checkpoint


def _removed_before_next_save(start: Start, resumed_from: int) -> list[Path]:
    """Returns the folders that VERL removes before it writes the next checkpoint.

    VERL removes checkpoints in advance only if it keeps more than one checkpoint. VERL removes only checkpoints that it
    has saved since its process resumed from the step `resumed_from`.
    """
    keep = start.checkpoint.keep
    if keep == 1 or start.checkpoint.export_every or start.needed_steps is not None:
        return []
    saved = [step for step in finished_steps(start.checkpoints) if step > resumed_from]
    return [
        actor_of(start.checkpoints / f"global_step_{step}") for step in saved[: max(0, len(saved) - keep + 1)]
    ]


def _prepare_finished_rollouts(start: Start) -> None:
    """Removes the finished rollouts from the disk, except the rollouts of an interrupted step, which the resumed run
    can use."""
    if not start.keeps_rollouts:
        finished_rollouts.forget(start.folder)
    elif count := finished_rollouts.prepare(start.folder, str(start.base)):
        start.warn(f"reuses {count} rollouts that the interrupted step had finished")


def _export_and_prune(start: Start, failed: set[int]) -> None:
    """Exports each model that should be exported and does not exist yet, and removes old checkpoints.

    A step whose model cannot be exported is reported and added to `failed`. The folders of checkpoints, not the
    metrics, decide which models are exported, because a run that is killed immediately after it saved a checkpoint has
    no metrics of that step.
    """
    for step in _steps_without_model(start, failed):
        try:
            _export(start, start.checkpoints / f"global_step_{step}", step_model(start.folder, step))
        except Failure as failure:  # no reason to end the training
            failed.add(step)
            start.warn(f"{failure.message}; step {step} has no model")
    finished_rollouts.remove_up_to(start.folder, max(finished_steps(start.checkpoints), default=0))
    # This list is made again, because the trainer may have saved more checkpoints during the export.
    needed = [*_steps_without_model(start, failed), *(start.needed_steps() if start.needed_steps else ())]
    prune(start.checkpoints, start.checkpoint.keep, needed)


def _steps_without_model(start: Start, failed: set[int]) -> list[int]:
    """Returns the steps whose checkpoint must still be exported as a model."""
    every = start.checkpoint.export_every
    return [
        step
        for step in finished_steps(start.checkpoints)
        if every and step % every == 0 and step not in failed and not step_model(start.folder, step).is_dir()
    ]


def _export(start: Start, checkpoint: Path, model: Path) -> None:
    """Exports a checkpoint as a model with VERL's merger. The exported model gets the format of the model from which
    the phase started."""
    if model.is_dir():
        return
    begun_at = time.monotonic()
    # The variables for workers would make the process load modules for workers, and read the secrets file, which no
    # longer exists.
    env = {name: value for name, value in start.command.env.items() if name not in _FOR_WORKERS}
    with whole_folder(model) as part:
        arguments = ["-m", "rstar2.train.verl.output.export", str(actor_of(checkpoint)), str(part)]
        run_export(Command([sys.executable, *arguments], env), start.log, start.hardware.export_timeout_s)
        write_format(load_codec(start.base), part, part)
    start.timer.timing.export_s += time.monotonic() - begun_at
    start.timer.save()


def last_actor(model: Path, recipe: StageRecipe) -> Path:
    """Returns VERL's checkpoint of the actor, with AdamW's state, from which a stage can continue the optimizer.

    Args:
        model: the model that an earlier stage returned.
        recipe: the recipe of the stage that continues.

    Raises:
        UserError: the model's folder does not belong to a stage, or the stage had another number of ranks, learning
            rate or weight decay than the recipe. VERL would keep the earlier learning rate and weight decay, whatever
            the recipe says.
    """
    checkpoints, hardware = model.parent / "checkpoints", recipe.hardware
    hint = "Give the model of an earlier stage, or begin with a new optimizer: --set optim.state=fresh."
    decision = read_decision(model.parent)
    step = decision.model_step if decision else None
    actor = checkpoints / f"global_step_{step or max(steps_of(checkpoints), default=0)}" / "actor"
    ranks = hardware.ranks
    if not any(actor.glob("optim_world_size_*")):
        raise UserError(f"optim.state = continued, but {model} has no optimizer state beside it", hint)
    if not (actor / f"optim_world_size_{ranks}_rank_0.pt").exists():
        raise UserError(f"optim.state = continued, but {actor} was not written by {ranks} ranks", hint)
    settings = model.parent / OPTIMIZER_FILE
    if not settings.exists():
        raise UserError(f"optim.state = continued, but {settings} is missing", hint)
    before = OptimSettings.model_validate_json(settings.read_text(encoding="utf-8"))
    for key in ("lr", "weight_decay"):
        old, new = getattr(before, key), getattr(recipe.optim, key)
        if old != new:
            raise UserError(
                f"optim.{key} = {new:g}, but {actor} was trained with {old:g}, and optim.state = continued "
                "keeps the old value",
                hint,
            )
    return actor


def continue_optimizer(model: Path, folder: Path, recipe: StageRecipe) -> None:
    """Makes a stage begin with the optimizer of the earlier stage that made its model. Does nothing if the stage
    itself has already saved a checkpoint. Raises UserError if `last_actor` does."""
    checkpoints = folder / "checkpoints"
    if any(checkpoints.glob("global_step_*/data*.pt")):
        return
    actor = last_actor(model, recipe).absolute()
    link = checkpoints / BEFORE / "actor"
    link.parent.mkdir(parents=True, exist_ok=True)
    link.unlink(missing_ok=True)
    link.symlink_to(actor)
    write_text(checkpoints / POINTER, "0")


def next_metrics(folder: Path) -> str:
    """Returns the name of the metrics file for a trainer that is started now."""
    return f"metrics-{1 + sum(1 for _ in folder.glob('metrics-*.jsonl'))}.jsonl"
