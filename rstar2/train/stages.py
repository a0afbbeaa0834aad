"""One stage of training in its own folder, from a model and data to a model.

```
FOLDER/
  train.parquet         the problems of this stage (RL only)
  agent_loop.yaml       the settings of our agent loop, for VERL (RL only)
  router.yaml           the settings of our rollout scheduler, for VERL (RL on several engines)
  rstar2_format.json    the format of its rollouts (RL only)
  checkpoints/          VERL's; a killed stage resumes from the last one. global_step_0 is the last of the stage
                        before, where its optimizer is continued
  metrics-1.jsonl …     one file per start of the trainer, one line per step
  worker_secrets.json   while the trainer runs: keys and tokens for workers on other nodes, for this user alone
  timing.json           see `rstar2.train.records.timing`
  model/                appears, whole, when the stage is done; a stage that has one is not run again
```
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from rstar2.data.parquet import write_parquet
from rstar2.errors import Failure, UserError
from rstar2.files import write_text
from rstar2.formats.format import Format, save_format
from rstar2.prompts import ChatCodec, load_codec
from rstar2.train.command import (
    ROUTER_FILE,
    Command,
    agent_loop_yaml,
    router_yaml,
    secrets_file,
    sft_command,
)
from rstar2.train.launch import run_trainer
from rstar2.train.recipe import Hardware, SftRecipe, StageRecipe
from rstar2.train.records.timing import PhaseTimer, TrainerTimer
from rstar2.train.sampling import JudgeAddress, Rows

OnStep = Callable[[int, dict[str, float]], None]
"""Called with the step's number, from 1, and its metrics."""

DONE_BEFORE = "done before"
MAIN_METRIC = "rstar2/pass_rate"
_STEP_METRICS = {MAIN_METRIC, "train/loss"}
"""Each step's line has one of them; a line of validation alone has none."""
_POINTER = "latest_checkpointed_iteration.txt"
_BEFORE = "global_step_0"
"""The checkpoint that a stage starts from; VERL counts its steps from 1."""


class PhaseProgress(Protocol):
    """Shows the phases of a run. A phase is a row, known by its name; its text changes while the phase runs."""

    def start(self, name: str, title: str, total: int) -> None: ...

    def update(self, name: str, done: int, text: str) -> None: ...

    def finish(self, name: str, text: str) -> None: ...


def run_sft(
    recipe: SftRecipe,
    model: Path,
    data: Path,
    conversations: int,
    folder: Path,
    logs: Path,
    progress: PhaseProgress,
    timer: PhaseTimer,
    trainer_env: Callable[[Hardware], Mapping[str, str]] | None = None,
) -> Path:
    """Stage 0: fine-tune on `data`, of `rstar2.train.conversations.write_encoded`; returns the model's folder.


    The trainer prints to `logs`; `trainer_env` is that of `rstar2.train.pipeline.Pipeline`. A Failure where it fails.
    """
    steps = conversations // recipe.batch * recipe.epochs
    progress.start("sft", "stage 0: SFT", steps)
    if is_done(folder):
        progress.finish("sft", DONE_BEFORE)
        return folder / "model"

    def on_step(step: int, metrics: dict[str, float]) -> None:
        progress.update("sft", step, f"loss {metrics['train/loss']:.3f}")

    command = sft_command(recipe, folder, model, data, next_metrics(folder))
    if trainer_env:
        command.env.update(trainer_env(recipe.hardware))
    trained = train(command, folder, model, logs / "sft.log", on_step, timer)
    progress.finish("sft", f"{conversations} conversations, {steps} steps")
    return trained


def write_stage_inputs(
    recipe: StageRecipe, model: Path, rows: Rows, folder: Path, judge: JudgeAddress
) -> None:
    """Write what the trainer of an RL stage reads to the stage's folder."""
    codec = load_codec(model)
    rows = fitting(in_format(rows, codec.format), codec, recipe.rollout.prompt_tokens)
    # The recipe decides on 2G, whatever the data was prepared for.
    rows = [{**row, "__rollout_n__": recipe.rollout.rollouts} for row in rows]
    write_parquet(folder / "train.parquet", rows)
    save_format(codec.format, folder)
    # Only this user may read it: it holds the judge's token.
    write_text(folder / "agent_loop.yaml", agent_loop_yaml(recipe, folder, *judge), mode=0o600)
    if recipe.hardware.schedules_sessions:
        write_text(folder / ROUTER_FILE, router_yaml(recipe))


def in_format(rows: Rows, fmt: Format) -> Rows:
    """The rows with their prompts in a format; a row that does not hold its problem's text keeps its prompt."""
    told = [(row, (row.get("extra_info") or {}).get("problem")) for row in rows]
    return [row if problem is None else {**row, "prompt": fmt.messages(problem)} for row, problem in told]


def fitting(rows: Rows, codec: ChatCodec, prompt_tokens: int) -> Rows:
    """The rows whose prompt has at most `prompt_tokens` tokens; a UserError where none has."""
    kept = [row for row in rows if len(codec.prompt(list(row["prompt"]))) <= prompt_tokens]
    if not kept:
        raise UserError(
            f"every prompt of the training data is longer than rollout.prompt_tokens = {prompt_tokens}",
            "Raise rollout.prompt_tokens.",
        )
    return kept


def is_done(folder: Path) -> bool:
    """Whether a stage's folder holds its finished model."""
    return (folder / "model").is_dir()


def step_metrics(folder: Path) -> dict[int, dict[str, Any]]:
    """A stage's metrics by step; where a step was run twice, the later run counts."""
    steps: dict[int, dict[str, Any]] = {}
    for path in sorted(folder.glob("metrics-*.jsonl"), key=lambda path: int(path.stem.split("-")[1])):
        for line in path.read_bytes().splitlines(keepends=True):
            if line.endswith(b"\n"):
                row = json.loads(line)
                if MAIN_METRIC in row["data"]:  # not a line of validation alone
                    steps[int(row["step"])] = row["data"]
    return dict(sorted(steps.items()))


def train(command: Command, folder: Path, base: Path, log: Path, on_step: OnStep, timer: PhaseTimer) -> Path:
    """Start a VERL trainer in a stage's folder, follow it to its end, and return the new model's folder.

    It starts from the model `base` and prints to `log`; a Failure where it fails.
    """
    repair_checkpoint_pointer(folder / "checkpoints")
    folder.mkdir(parents=True, exist_ok=True)
    trainer_timer = TrainerTimer(timer)

    def on_line(line: dict[str, Any]) -> None:
        if not _STEP_METRICS.isdisjoint(line["data"]):
            trainer_timer.on_step(line["data"])
            on_step(int(line["step"]), line["data"])

    with secrets_file(command, os.environ):
        run_trainer(command, log, Path(command.env["VERL_FILE_LOGGER_PATH"]), on_line)
    started = time.monotonic()
    checkpoints = folder / "checkpoints"
    pointer = checkpoints / _POINTER
    if not pointer.exists():
        raise Failure(f"the trainer left no checkpoint in {checkpoints}", f"Its log: {log}")
    step = checkpoints / f"global_step_{pointer.read_text().strip()}"
    actor = step / "actor"  # only RL has this folder
    _export((actor if actor.is_dir() else step) / "huggingface", base, folder / "model")
    timer.timing.export_s += time.monotonic() - started
    timer.save()
    return folder / "model"


def _export(weights: Path, base: Path, model: Path) -> None:
    """Copy a checkpoint's Hugging Face model, with the prompt format of the model it came from."""
    part = model.with_name(".model.part")
    shutil.rmtree(part, ignore_errors=True)
    shutil.copytree(weights, part)
    fmt = load_codec(base).format
    save_format(fmt, part)
    (part / "chat_template.jinja").write_text(fmt.template, encoding="utf-8")
    part.rename(model)


def last_actor(model: Path, recipe: StageRecipe) -> Path:
    """VERL's checkpoint of the actor, AdamW's state included, at the end of the stage that made a model.

    A UserError where the model's folder is not that of a stage, or the stage ran on another number of ranks or at
    another learning rate: VERL would go on with that stage's, whatever the recipe says.
    """
    import torch

    checkpoints, hardware = model.parent / "checkpoints", recipe.hardware
    hint = "Give the folder of the stage before, or start afresh with --set optim.state=fresh."
    steps = [int(folder.name.removeprefix("global_step_")) for folder in checkpoints.glob("global_step_*")]
    actor = checkpoints / f"global_step_{max(steps, default=0)}" / "actor"
    ranks = hardware.nodes * hardware.gpus_per_node
    if not any(actor.glob("optim_world_size_*")):
        raise UserError(f"optim.state = continued, but {model} has no optimizer state beside it", hint)
    schedule = actor / f"extra_state_world_size_{ranks}_rank_0.pt"
    if not schedule.exists():
        raise UserError(f"optim.state = continued, but {actor} was not written by {ranks} ranks", hint)
    [lr] = set(torch.load(schedule, map_location="cpu", weights_only=False)["lr_scheduler"]["base_lrs"])
    if lr != recipe.optim.lr:
        raise UserError(f"optim.lr = {recipe.optim.lr:g}, but {actor} would be continued at {lr:g}", hint)
    return actor


def continue_optimizer(model: Path, folder: Path, recipe: StageRecipe) -> None:
    """Have a stage that has no checkpoint yet begin with the optimizer of the stage that made the model.

    A UserError as of `last_actor`.
    """
    checkpoints = folder / "checkpoints"
    if any(checkpoints.glob("global_step_*/data*.pt")):
        return
    actor = last_actor(model, recipe).absolute()
    link = checkpoints / _BEFORE / "actor"
    link.parent.mkdir(parents=True, exist_ok=True)
    link.unlink(missing_ok=True)
    link.symlink_to(actor)
    write_text(checkpoints / _POINTER, "0")


def repair_checkpoint_pointer(checkpoints: Path) -> None:
    """Make VERL's pointer to the latest checkpoint name a whole one.

    VERL writes the pointer last but not by rename, so a kill can leave it empty.
    """
    pointer = checkpoints / _POINTER
    if not pointer.exists():
        return
    named = pointer.read_text().strip()
    if named.isdigit() and (checkpoints / f"global_step_{named}").is_dir():
        return
    whole = [
        int(folder.name.removeprefix("global_step_"))
        for folder in checkpoints.glob("global_step_*")
        if any(folder.glob("data*.pt")) or folder.name == _BEFORE
    ]
    if whole:
        pointer.write_text(str(max(whole)))
    else:
        pointer.unlink()


def next_metrics(folder: Path) -> str:
    """The name of the metrics file of the trainer's next start."""
    return f"metrics-{1 + sum(1 for _ in folder.glob('metrics-*.jsonl'))}.jsonl"
