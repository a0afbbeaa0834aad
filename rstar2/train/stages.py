"""One stage of training in a folder of its own, from a model and data to a model.

```
FOLDER/
  train.parquet         the problems of this stage (RL only)
  agent_loop.yaml       our loop and its settings, for VERL (RL only)
  checkpoints/          VERL's; a killed stage goes on from the last one
  metrics-1.jsonl …     one a start of the trainer, one line a step
  model/                appears, whole, when the stage is done; a stage that has one is not run again
```
"""

from __future__ import annotations

import json
import os
import shutil
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from rstar2.data.parquet import write_parquet
from rstar2.errors import Failure, UserError
from rstar2.prompts import CHAT_TEMPLATE, ChatCodec, load_codec, save_format
from rstar2.trace import Trace
from rstar2.train.command import Command, StagePaths, agent_loop_yaml, sft_command, stage_command
from rstar2.train.launch import run_trainer
from rstar2.train.recipe import SftRecipe, StageRecipe

OnStep = Callable[[int, dict[str, float]], None]
"""Told the step's number, from 1, and its metrics."""

MAIN_METRIC = "rstar2/pass_rate"
_TRACKER = "latest_checkpointed_iteration.txt"


def run_sft(recipe: SftRecipe, *, model: Path, data: Path, folder: Path, logs: Path, on_step: OnStep) -> Path:
    """Fine-tune on conversations and return the new model's folder.

    Args:
        data: parquet with a `messages` column.
        logs: the folder for the trainer's output.

    Raises:
        Failure: the trainer failed.
    """
    checkpoints = folder / "checkpoints"
    command = sft_command(recipe, model, data, checkpoints, _next_metrics(folder))
    return _train(command, model, folder, logs / "sft.log", on_step, "huggingface", "train/loss")


def run_stage(
    recipe: StageRecipe,
    *,
    model: Path,
    rows: list[dict[str, Any]],
    folder: Path,
    judge: tuple[str, str | None],
    logs: Path,
    on_step: OnStep,
) -> Path:
    """Run one stage of GRPO-RoC and return the new model's folder.

    Args:
        rows: problems as `rstar2.data.parquet.rl_rows` makes them.
        judge: its URL and token.
        logs: the folder for the trainer's output.

    Raises:
        Failure: the trainer failed.
    """
    paths = StagePaths(
        model=model,
        data=folder / "train.parquet",
        checkpoints=folder / "checkpoints",
        agent_loop=folder / "agent_loop.yaml",
        metrics=_next_metrics(folder),
    )
    folder.mkdir(parents=True, exist_ok=True)
    rows = fitting(rows, load_codec(model), recipe.rollout.prompt_tokens)
    # The recipe decides on 2G, whatever the data was prepared for.
    write_parquet(paths.data, [{**row, "__rollout_n__": recipe.rollout.rollouts} for row in rows])
    _write_private(paths.agent_loop, agent_loop_yaml(recipe, *judge))
    command = stage_command(recipe, paths)
    return _train(
        command, model, folder, logs / f"{folder.name}.log", on_step, "actor/huggingface", MAIN_METRIC
    )


def fitting(rows: list[dict[str, Any]], codec: ChatCodec, prompt_tokens: int) -> list[dict[str, Any]]:
    """The rows whose prompt has at most `prompt_tokens` tokens.

    Raises:
        UserError: none has.
    """
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


def drop_solved(
    rows: list[dict[str, Any]], traces: Iterable[Trace], times: int, fill: int
) -> list[dict[str, Any]]:
    """Leave out the problems that were solved every time (arXiv 2508.20722, stage 3).

    Args:
        rows: as `rstar2.data.parquet.rl_rows` makes them.
        traces: samples of these problems, by the policy that the stage starts from.
        times: samples a problem must have for this to count.
        fill: problems that a batch needs; where fewer are left, solved ones fill it up.

    Raises:
        UserError: a problem has too few samples.
    """
    samples: dict[str, list[bool]] = defaultdict(list)
    for trace in traces:
        samples[trace.problem_id].append(trace.correct)
    kept: list[dict[str, Any]] = []
    solved: list[dict[str, Any]] = []
    for row in rows:
        name = row["extra_info"]["id"]
        had = samples[name][:times]
        if len(had) < times:
            raise UserError(
                f"problem {name} has {len(had)} samples, {times} are needed to tell whether it is solved",
                f"Sample the training problems {times} times with the policy that the stage starts from.",
            )
        (solved if all(had) else kept).append(row)
    return kept + solved[: max(0, fill - len(kept))]


def _train(
    command: Command, base: Path, folder: Path, log: Path, on_step: OnStep, weights: str, needed: str
) -> Path:
    mend_tracker(folder / "checkpoints")
    metrics = Path(command.env["VERL_FILE_LOGGER_PATH"])
    metrics.parent.mkdir(parents=True, exist_ok=True)
    log.parent.mkdir(parents=True, exist_ok=True)

    def on_line(line: dict[str, Any]) -> None:
        if needed in line["data"]:  # a line of validation alone is no step
            on_step(int(line["step"]), line["data"])

    run_trainer(command, log, metrics, on_line)
    return _export(folder, base, weights, log)


def mend_tracker(checkpoints: Path) -> None:
    """Make VERL's pointer to the latest checkpoint name a whole one.

    VERL writes the pointer last but not by rename, so a kill can leave it empty.
    """
    tracker = checkpoints / _TRACKER
    if not tracker.exists():
        return
    named = tracker.read_text().strip()
    if named.isdigit() and (checkpoints / f"global_step_{named}").is_dir():
        return
    whole = [
        int(folder.name.removeprefix("global_step_"))
        for folder in checkpoints.glob("global_step_*")
        if any(folder.glob("data*.pt"))
    ]
    if whole:
        tracker.write_text(str(max(whole)))
    else:
        tracker.unlink()


def _export(folder: Path, base: Path, weights: str, log: Path) -> Path:
    """Copy the last checkpoint's Hugging Face model out, with the prompt words of the model it came from."""
    tracker = folder / "checkpoints" / _TRACKER
    if not tracker.exists():
        raise Failure(f"the trainer left no checkpoint in {tracker.parent}", f"Its log: {log}")
    source = tracker.parent / f"global_step_{tracker.read_text().strip()}" / weights
    part = folder / ".model.part"
    shutil.rmtree(part, ignore_errors=True)
    shutil.copytree(source, part)
    save_format(load_codec(base).format, part)
    (part / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8")
    part.rename(folder / "model")
    return folder / "model"


def _next_metrics(folder: Path) -> Path:
    number = 1 + sum(1 for _ in folder.glob("metrics-*.jsonl"))
    return folder / f"metrics-{number}.jsonl"


def _write_private(path: Path, text: str) -> None:
    """The judge's token is in it."""
    part = path.with_name(f".{path.name}.part")
    with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
        file.write(text)
    part.replace(path)
