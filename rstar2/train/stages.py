"""One stage of training in its own folder, from a model and data to a model.

```
FOLDER/
  train.parquet         the problems of this stage (RL only)
  agent_loop.yaml       the settings of our agent loop, for VERL (RL only)
  router.yaml           the settings of our rollout scheduler, for VERL (RL on several engines)
  rstar2_format.json    the format of its rollouts (RL only)
  checkpoints/          VERL's; a killed stage resumes from the last one. global_step_0 is the last of the stage
                        before, where its optimizer is continued
  held_out.parquet      the problems it is measured on while it trains, where the recipe names some (RL only)
  metrics-1.jsonl …     one file per start of the trainer, one line per step
  finished-rollouts/    those of the step after the last checkpoint, see `rstar2.train.records.finished_rollouts`
                        (RL in sync mode only)
  outcomes.jsonl        how the rollouts of each problem ended, see `rstar2.train.records.outcome_log` (RL only)
  rollouts.json         how far the present step is, see `rstar2.train.records.progress` (RL only)
  alive.json            what the trainer is doing, see there
  decision.json         a rule that ended the stage, and how, see `rstar2.train.rules` (RL only)
  stop_after_step       the trainer is to save after the present step and then end, see `rstar2.train.stopping`
  final_error.json      an error that ended training at once, see `rstar2.train.records.final_error`
  alarms.jsonl          the signs of collapse there were, see `rstar2.train.records.alarms` (RL only)
  worker_secrets.json   while the trainer runs: keys and tokens for workers on other nodes, for this user alone
  timing.json           see `rstar2.train.records.timing`
  steps_before.json     how many steps the stages before it have, see `rstar2.train.records.steps` (RL only)
  train.npy train.arrow validation.npy validation.arrow
                        the conversations, and which are trained on and measured, see `rstar2.train.split` (SFT only)
  held_out/step-500/ …  samples of held-out problems by the models of some steps, see `rstar2.train.choose` (SFT only)
  chosen.json           which step's model is returned, and why (SFT only)
  models/step-20/ …     models of earlier steps, where the recipe asks for them
  model/                appears, whole, when the stage is done; a stage that has one is not run again
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
"""Called with the step's number, from 1, and its metrics; one that is not a number is NaN."""

DONE_BEFORE = "done before"
OPTIMIZER_FILE = "optimizer.json"
"""In a stage's folder: the settings that the stage after it continues."""
_STEP_METRICS = {MAIN_METRIC, SFT_METRIC}
"""Each step's line has one of them; a line of validation alone has none."""
_FOR_WORKERS = ("VERL_USE_EXTERNAL_MODULES", "RSTAR2_SECRETS_FILE")


class PhaseProgress(Protocol):
    """Shows the phases of a run. A phase is a row, known by its name; its text changes while the phase runs."""

    def start(self, name: str, title: str, total: int) -> None: ...

    def update(self, name: str, done: int, text: str) -> None: ...

    def finish(self, name: str, text: str) -> None: ...

    def warn(self, text: str) -> None: ...


@dataclass(frozen=True)
class Start:
    """What one start of a phase's trainer needs."""

    command: Command
    folder: Path
    steps: int
    """Of the whole phase."""
    base: Path
    """The model it starts from."""
    log: Path
    hardware: Hardware
    checkpoint: CheckpointSettings
    timer: PhaseTimer
    warn: Callable[[str], None]
    """For the terminal and the log; see `warner`."""
    keeps_rollouts: bool = False
    """Whether finished rollouts are kept for the next start, see `rstar2.train.records.finished_rollouts`."""
    spared: Callable[[], Collection[int]] | None = None
    """Steps whose checkpoint stays although it is old. If given, VERL itself removes no checkpoints."""
    rules: StageRules | None = None
    """What may end the phase before its last step."""

    @property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoints"

    @property
    def end(self) -> int | None:
        """The step whose checkpoint the phase ends with; None while it has to be trained on."""
        saved = saved_step(self.checkpoints) or 0
        decision = self.rules.decision if self.rules else None
        if decision is not None and decision.model_step is not None:
            return decision.model_step
        return saved if saved == self.steps or (decision is not None and saved >= decision.step) else None


def warner(progress: PhaseProgress, log: Path) -> Callable[[str], None]:
    """A function that warns the user, in the trainer's log too."""

    def warn(text: str) -> None:
        progress.warn(text)
        _write_log(log, f"warning: {text}")

    return warn


def _write_log(log: Path, text: str) -> None:
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a", encoding="utf-8") as file:
        file.write(f"rstar2: {text}\n")


@dataclass(frozen=True)
class SftInput:
    """What stage 0 trains, and on what."""

    recipe: SftRecipe
    model: Path
    data: Path
    """The folder with the files of `rstar2.train.split.Split.write`."""
    conversations: int
    """How many are trained on."""
    validation: int = 0
    """How many the loss is measured on."""


EvaluateStep = Callable[[int, Path], None]
"""Samples the held-out problems with the model of an SFT step, given the step and the model's folder."""


def run_sft(
    inputs: SftInput,
    folder: Path,
    logs: Path,
    progress: PhaseProgress,
    timer: PhaseTimer,
    trainer_env: Callable[[Hardware], Mapping[str, str]] | None = None,
    evaluate: EvaluateStep | None = None,
) -> Path:
    """Stage 0: fine-tune a model. Returns the folder of the chosen step's model, see `rstar2.train.choose`.

    The trainer prints to `logs`; `trainer_env` is that of `rstar2.train.pipeline.Pipeline`. For each step that
    `evaluate` is called for, the trainer saves and ends, and continues afterwards. Raises Failure if the trainer fails.
    """
    recipe = inputs.recipe
    steps = inputs.conversations // recipe.batch * recipe.epochs
    progress.start("sft", "stage 0: SFT", steps)
    if is_done(folder):
        progress.finish("sft", DONE_BEFORE)
        return folder / "model"

    def on_step(step: int, metrics: dict[str, float]) -> None:
        measured = metrics.get(VALIDATION_METRIC)
        beside = "" if measured is None else f", validation loss {measured:.3f}"
        progress.update("sft", step, f"loss {metrics['train/loss']:.3f}{beside}")

    log = logs / "sft.log"
    warn = warner(progress, log)
    saved = CheckpointSettings(
        every=recipe.checkpoint_every, every_minutes=recipe.checkpoint_every_minutes, keep=SFT_KEEP
    )

    def spared() -> list[int]:
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
            command, folder, step, inputs.model, log, recipe.hardware, saved, timer, warn, spared=spared
        )

    with _disk_faults(folder):
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
        _write_log(log, f"the model is that of {choice.text}")
        _take(start, choice.step)
    progress.finish(
        "sft", f"{inputs.conversations} conversations, {steps} steps; the model is that of {choice.text}"
    )
    return folder / "model"


def _keep_best_model(recipe: SftRecipe, folder: Path, steps: int) -> None:
    """Remove the models of evaluated steps, but for the one that would be chosen now."""
    best = best_so_far(recipe, folder, steps) if recipe.chosen_by == "held_out" else None
    for model in (folder / "models").glob("step-*"):
        if model.name != f"step-{best}":
            shutil.rmtree(model)


def _take(start: Start, step: int) -> None:
    """Make the chosen step's model that of the stage; it may have been made for an evaluation."""
    made = step_model(start.folder, step)
    if made.is_dir():
        made.rename(start.folder / "model")
    else:
        _export(start, start.checkpoints / f"global_step_{step}", start.folder / "model")
    shutil.rmtree(start.folder / "models", ignore_errors=True)


def write_stage_inputs(
    recipe: StageRecipe, model: Path, rows: Rows, folder: Path, judge: JudgeAddress
) -> None:
    """Write what the trainer of an RL stage reads to the stage's folder; a UserError where too few prompts fit."""
    codec, longest = load_codec(model), recipe.rollout.prompt_tokens
    # The recipe decides on 2G, whatever the data was prepared for.
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
    # Only this user may read it: it holds the judge's token.
    write_text(folder / "agent_loop.yaml", agent_loop_yaml(recipe, folder, *judge), mode=0o600)
    if recipe.schedules_sessions:
        write_text(folder / ROUTER_FILE, router_yaml(recipe))


def in_format(rows: Rows, fmt: Format) -> Rows:
    """The rows with their prompts in a format; a row that does not hold its problem's text keeps its prompt."""
    texts = [(row.get("extra_info") or {}).get("problem") for row in rows]
    return [
        row if text is None else {**row, "prompt": fmt.messages(text)}
        for row, text in zip(rows, texts, strict=True)
    ]


def fitting(rows: Rows, codec: ChatCodec, prompt_tokens: int) -> Rows:
    """The rows whose prompt in the codec's format has at most `prompt_tokens` tokens, with that prompt."""
    formatted = in_format(rows, codec.format)
    lengths = prompt_lengths(formatted, codec)
    return [row for row, length in zip(formatted, lengths, strict=True) if length <= prompt_tokens]


def prompt_lengths(rows: Rows, codec: ChatCodec) -> list[int]:
    """Tokens of each row's prompt in the codec's format."""
    return [len(codec.prompt(list(row["prompt"]))) for row in in_format(rows, codec.format)]


def check_enough(count: int, needed: int, prompt_tokens: int, data: str) -> None:
    """Raise a UserError where `count`, the problems of `data` whose prompt fits, is less than are `needed`."""
    if count < needed:
        lower = ", or lower rollout.prompts" if needed > 1 else ""
        raise UserError(
            f"{data} has {count} problems whose prompt has at most rollout.prompt_tokens = {prompt_tokens} tokens, "
            f"but {needed} are needed",
            f"Raise rollout.prompt_tokens{lower}.",
        )


def is_done(folder: Path) -> bool:
    """Whether a stage's folder holds its finished model."""
    return (folder / "model").is_dir()


def train(start: Start, on_step: OnStep) -> Path:
    """Start a VERL trainer in a phase's folder, follow it to its end, and return the new model's folder.

    It resumes from the last checkpoint that is whole. A Failure where it fails or hangs, or the last model cannot be
    made; one of an earlier step that cannot be made is a warning. A UserError if the next checkpoint has no room.
    """
    with _disk_faults(start.folder):
        _export(start, _trained(start, on_step), start.folder / "model")
    return start.folder / "model"


@contextmanager
def _disk_faults(folder: Path) -> Iterator[None]:
    """Makes what goes wrong with a file a Failure that says what to do."""
    try:
        yield
    except OSError as error:
        raise Failure(
            f"{error.filename or folder}: {error.strerror or error}",
            "If the disk is full, make room; the same command continues from the last checkpoint.",
        ) from error


def _trained(start: Start, on_step: OnStep) -> Path:
    """Train up to the start's last step, unless that was done before. Returns the checkpoint that it ends with.

    That is the one of the last step, or the one that a rule went back to.
    """
    folder, checkpoints = start.folder, start.checkpoints
    choose_checkpoint(checkpoints, start.warn)
    folder.mkdir(parents=True, exist_ok=True)
    failed: set[int] = set()
    _tend_checkpoints(start, failed)
    trainer_timer = TrainerTimer(start.timer)
    resumed_from = saved_step(checkpoints) or 0
    outcome_log.forget_after(folder, resumed_from)
    warned = False

    def warn_of_disk() -> None:
        """Warn while there is time to free disk space: once, and again if it becomes short a second time."""
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
        _tend_checkpoints(start, failed)
        if step < start.steps:
            warn_of_disk()

    # A kill while the model was made leaves that alone to be done.
    if start.end is None:
        require_disk_space(checkpoints)
        _tend_rollouts(start)
        for of_earlier_start in (PROGRESS_FILE, ACTIVITY_FILE, FINAL_ERROR_FILE):
            (folder / of_earlier_start).unlink(missing_ok=True)
        metrics = Path(start.command.env["VERL_FILE_LOGGER_PATH"])
        with secrets_file(start.command, os.environ):
            faults = FaultWarner(folder / PROGRESS_FILE, start.warn)
            signs = SignsOfLife(metrics, folder, start.hardware.hung_after_s, faults.look)
            run_trainer(start.command, start.log, signs, on_line, start.warn)
    last, end = last_checkpoint(checkpoints), start.end
    if last is None:
        raise Failure(f"the trainer left no checkpoint in {checkpoints}", f"Its log: {start.log}")
    if end is None:
        raise Failure(
            f"the trainer ended with {last.name}, before step {start.steps}", f"Its log: {start.log}"
        )
    chosen = checkpoints / f"global_step_{end}"
    if chosen != last and (wrong := fault(chosen)):
        raise Failure(
            f"the stage went back to step {end}, whose checkpoint is damaged: {wrong}",
            f"Remove {folder / DECISION_FILE} to train on from the last checkpoint.",
        )
    if start.rules:
        start.rules.ended(saved_step(checkpoints) or 0)
    finished_rollouts.forget(folder)
    return chosen


def _removed_before_next_save(start: Start, resumed_from: int) -> list[Path]:
    """The folders that VERL removes before it writes the next checkpoint.

    It does so if it keeps more than one, and only with those that it saved itself since its start at `resumed_from`.
    """
    keep = start.checkpoint.keep
    if keep == 1 or start.checkpoint.export_every or start.spared is not None:
        return []
    saved = [step for step in finished_steps(start.checkpoints) if step > resumed_from]
    return [
        actor_of(start.checkpoints / f"global_step_{step}") for step in saved[: max(0, len(saved) - keep + 1)]
    ]


def _tend_rollouts(start: Start) -> None:
    """Keep the finished rollouts of the step that a kill has interrupted, and no others."""
    if not start.keeps_rollouts:
        finished_rollouts.forget(start.folder)
    elif count := finished_rollouts.prepare(start.folder, str(start.base)):
        start.warn(f"uses {count} rollouts again that the interrupted step had finished")


def _tend_checkpoints(start: Start, failed: set[int]) -> None:
    """Make the models that are due, and remove old checkpoints.

    A step without a model is reported and added to `failed`. The folders decide which models are due, not the lines of
    metrics, because a kill right after a checkpoint leaves no line of its step.
    """
    for step in _steps_without_model(start, failed):
        try:
            _export(start, start.checkpoints / f"global_step_{step}", step_model(start.folder, step))
        except Failure as failure:  # no reason to end the training
            failed.add(step)
            start.warn(f"{failure.message}; step {step} has no model")
    finished_rollouts.remove_up_to(start.folder, max(finished_steps(start.checkpoints), default=0))
    # Asked again: the trainer may have saved more while a model was made.
    spared = [*_steps_without_model(start, failed), *(start.spared() if start.spared else ())]
    prune(start.checkpoints, start.checkpoint.keep, spared)


def _steps_without_model(start: Start, failed: set[int]) -> list[int]:
    """The steps whose checkpoint is to become a model, and is none yet."""
    every = start.checkpoint.export_every
    return [
        step
        for step in finished_steps(start.checkpoints)
        if every and step % every == 0 and step not in failed and not step_model(start.folder, step).is_dir()
    ]


def _export(start: Start, checkpoint: Path, model: Path) -> None:
    """Make a model of a checkpoint by VERL's merger, with the format of the model it came from."""
    if model.is_dir():
        return
    begun_at = time.monotonic()
    # What workers on other nodes read from files is gone by now, and is of no use here.
    env = {name: value for name, value in start.command.env.items() if name not in _FOR_WORKERS}
    with whole_folder(model) as part:
        words = ["-m", "rstar2.train.verl.output.export", str(actor_of(checkpoint)), str(part)]
        run_export(Command([sys.executable, *words], env), start.log, start.hardware.export_timeout_s)
        write_format(load_codec(start.base), part, part)
    start.timer.timing.export_s += time.monotonic() - begun_at
    start.timer.save()


def last_actor(model: Path, recipe: StageRecipe) -> Path:
    """VERL's checkpoint of the actor, AdamW's state included, of the step whose model a stage returned.

    A UserError where the model's folder is not that of a stage, or the stage ran on another number of ranks, at another
    learning rate or with another weight decay: VERL would continue with that stage's, whatever the recipe says.
    """
    checkpoints, hardware = model.parent / "checkpoints", recipe.hardware
    hint = "Give the folder of the stage before, or start afresh with --set optim.state=fresh."
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
                f"optim.{key} = {new:g}, but {actor} was trained with {old:g}, which optim.state = continued keeps",
                hint,
            )
    return actor


def continue_optimizer(model: Path, folder: Path, recipe: StageRecipe) -> None:
    """Have a stage that has no checkpoint yet begin with the optimizer of the stage that made the model.

    A UserError as of `last_actor`.
    """
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
    """The name of the metrics file of the trainer's next start."""
    return f"metrics-{1 + sum(1 for _ in folder.glob('metrics-*.jsonl'))}.jsonl"
