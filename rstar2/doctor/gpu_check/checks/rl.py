"""Runs steps of `rstar2 train` with FSDP and the rollout engine, and kills the run with SIGKILL in the middle of a
step.

The check `resume` later continues the killed run.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

from rstar2.doctor.gpu_check.check import Check, CheckFailed, Measurements, Settings
from rstar2.doctor.gpu_check.tools import commands
from rstar2.doctor.gpu_check.tools.device import torch_device
from rstar2.files import read_json, write_json

KILLED_AFTER = 2
"""The number of finished steps after which training is killed."""
POLL_S = 0.2
PARTS = {
    "rollouts": ("gen",),
    "log-probabilities": ("old_log_prob",),
    "update": ("update_actor",),
    "log-probabilities and update": ("old_log_prob", "update_actor"),
    "weights to the engine": ("update_weights",),
    "checkpoint": ("save_checkpoint",),
    "whole step": ("step",),
}
"""VERL's names for the parts of a step's time."""


def run(settings: Settings, measurements: Measurements) -> None:
    from rstar2.doctor.gpu_check.tools import training
    from rstar2.train.records.steps import step_metrics

    torch_device(settings)
    words, stage = words_of(settings), run_folder(settings) / "stage1"
    with commands.started(settings, CHECK.name, words) as process:
        _wait_for_steps(settings, process, stage)
        os.killpg(process.pid, signal.SIGKILL)
    steps = list(step_metrics(stage).values())
    measurements.add("steps before the kill", len(steps))
    wrong = training.add_agreement(measurements, steps)
    last = steps[-1]
    written = float(last["rstar2/tokens"]) * float(last["rstar2/rollouts"])
    measurements.add("speed of the rollouts", written / float(last["timing_s/gen"]), "tokens/s")
    _add_plan(measurements, settings, stage)
    if wrong:
        raise CheckFailed(
            "; ".join(wrong),
            "If only later steps differ, the new weights do not reach the engine. If all steps differ, engine and "
            "trainer compute differently: see the check `attention`.",
        )
    kl = max((abs(float(step["rollout_corr/kl"])) for step in steps), default=0.0)
    seconds = float(last["timing_s/step"])
    measurements.summary = (
        f"{len(steps)} steps, the last in {seconds:.1f} s; KL of engine and trainer {kl:.1g} nats/token"
    )


def run_folder(settings: Settings) -> Path:
    return settings.work / "rl"


def words_of(settings: Settings) -> list[str]:
    """Returns the arguments of the command `rstar2 train` that this check runs.

    The check `resume` gets the same arguments, even if less memory is free when `resume` runs.
    """
    from rstar2.data import builtin
    from rstar2.data.parquet import rl_rows, write_parquet
    from rstar2.doctor.gpu_check.tools import training
    from rstar2.doctor.gpu_check.tools.model import SEED

    record, problems = settings.work / "rl-command.json", settings.work / "problems.parquet"
    if not record.exists():
        count = 4 * training.PROMPTS
        write_parquet(problems, rl_rows(builtin.training(SEED, count), training.ROLLOUTS, "builtin"))
        write_json(record, training.rl_words(settings, run_folder(settings), problems))
    words: list[str] = read_json(record)
    return words


def _wait_for_steps(settings: Settings, process: subprocess.Popen[bytes], stage: Path) -> None:
    """Wait until `KILLED_AFTER` steps are finished. Raises the error of
    `commands.command_failed` if training ends earlier. The wait also ends when the time limit of the check is reached.
    """
    from rstar2.train.records.steps import step_metrics

    while len(step_metrics(stage)) < KILLED_AFTER:
        if (code := process.poll()) is not None:
            raise commands.command_failed(settings, CHECK.name, "train", code)
        time.sleep(POLL_S)


def _add_plan(measurements: Measurements, settings: Settings, stage: Path) -> None:
    """Add the measured memory and times, each with the plan's estimate for rollouts of this length."""
    from rstar2.doctor.gpu_check.tools import training
    from rstar2.doctor.gpu_check.tools.model import random_model
    from rstar2.model_shape import read_shape
    from rstar2.runs import load_config
    from rstar2.train.estimate.measured import assumptions_of
    from rstar2.train.estimate.memory import stage_memory
    from rstar2.train.estimate.work import Rates, stage_step
    from rstar2.train.recipe import StageRecipe
    from rstar2.train.records.steps import step_metrics

    recipe = StageRecipe.model_validate(load_config(stage.parent)[1]["recipes"]["1"])
    steps = list(step_metrics(stage).values())
    shape, lengths = read_shape(random_model(settings)), assumptions_of(steps)
    memory = stage_memory(shape, recipe, lengths.update(recipe))
    step = stage_step(shape, recipe, memory, Rates(), lengths)
    planned = {"rollouts": step.generate_s, "log-probabilities and update": step.update_s}
    for name, keys in PARTS.items():
        seconds = sum(float(steps[-1].get(f"timing_s/{key}", 0.0)) for key in keys)
        measurements.add(f"last step: {name}", seconds, "s", planned.get(name))
    peak_gib = max(float(each["actor/perf/max_memory_allocated_gb"]) for each in steps)
    training.add_memory(measurements, settings, peak_gib, memory.expected_update_total)


CHECK = Check("rl", "Steps of RL, killed", run, limit_s=1500.0)
