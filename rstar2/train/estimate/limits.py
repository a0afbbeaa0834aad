"""Compares time limits with estimated durations, and counts with their upper limits.

The two numbers of a comparison belong to different parts of training, and neither part knows the other's number. If two
numbers conflict, a warning names the key to change. `rstar2.train.trainer.verl_limits` rejects recipes that VERL or
vLLM would reject only after minutes of work.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from rstar2.judge.schema import MAX_WAIT_S
from rstar2.model_shape import ModelShape
from rstar2.terminal import percent
from rstar2.train.estimate.memory import MASTER
from rstar2.train.estimate.work import Assumptions, Disk, Judge, Saving, Step
from rstar2.train.recipe import Hardware, StageRecipe
from rstar2.train.trainer.verl_limits import STICKY_REQUESTS

BF16 = 2
_ROUND_S = 600
_MOST_SAVING_SHARE = 0.25
"""The user is warned if saving takes more than this share of a run's time."""


@dataclass(frozen=True)
class SilentParts:
    """The longest periods, in seconds, in which a stage gives no sign of life (see
    `rstar2.train.launch.SignsOfLife`)."""

    start: float
    """Seconds from the start of the trainer until its weights are loaded: Ray's limit for starting a process, plus the
    time for reading a model or checkpoint."""
    rollout: float
    """Seconds that one rollout of full length takes if one of its calls waits `judge.wait_s` for the judge."""
    micro_batch: float
    """Seconds that one micro-batch of the update takes."""


def silent_parts(
    shape: ModelShape, recipe: StageRecipe, step: Step, disk: Disk, assumptions: Assumptions
) -> SilentParts:
    hardware = recipe.hardware
    read_s = (disk.checkpoint + disk.queue + BF16 * shape.parameters) / assumptions.disk_bytes_per_s
    most_tokens = step.kept_rollouts * recipe.longest / hardware.ranks
    return SilentParts(
        start=hardware.worker_start_s + read_s,
        rollout=recipe.rollout.tokens * step.token_s + recipe.judge.wait_s,
        micro_batch=min(recipe.update_tokens, most_tokens) / step.update_tokens_per_s,
    )


def limit_warnings(
    shape: ModelShape, recipe: StageRecipe, parts: SilentParts, saving: Saving, assumptions: Assumptions
) -> Iterator[str]:
    """Yields a warning for each limit of an RL stage that is too short or has no effect."""
    hardware = recipe.hardware
    durations = {
        "starting the trainer": parts.start,
        "one rollout of full length while the judge is unavailable": parts.rollout,
        "one micro-batch of the update": parts.micro_batch,
    }
    part, longest = max(durations.items(), key=lambda item: item[1])
    if longest > hardware.hung_after_s:
        yield (
            f"{part} may take {longest:,.0f} s without a sign of life, but the trainer is stopped as hung after "
            f"hardware.hung_after_s = {hardware.hung_after_s:,.0f}: set hardware.hung_after_s={_above(longest)}"
        )
    yield from time_limit_warnings(shape, hardware, saving, parts.micro_batch, assumptions)
    yield from _saving_warnings(recipe, saving)
    yield from _judge_limit_warnings(recipe)
    yield from _count_warnings(shape, recipe)


def time_limit_warnings(
    shape: ModelShape, hardware: Hardware, saving: Saving, micro_batch_s: float, assumptions: Assumptions
) -> Iterator[str]:
    """Yields warnings about the limits that both an RL stage and SFT have."""
    if hardware.device == "cuda":
        waits = max(saving.save_s, micro_batch_s)
        if waits > hardware.nccl_timeout_s:
            yield (
                f"ranks may wait {waits:,.0f} s for one another, to save a checkpoint or in a micro-batch, but the "
                f"trainer ends after hardware.nccl_timeout_s = {hardware.nccl_timeout_s:,}: set "
                f"hardware.nccl_timeout_s={_above(waits)}"
            )
        if hardware.nccl_timeout_s >= hardware.hung_after_s:
            yield (
                f"hardware.nccl_timeout_s = {hardware.nccl_timeout_s:,} is not below hardware.hung_after_s = "
                f"{hardware.hung_after_s:,.0f}, so a rank that hangs is stopped before NCCL can name the operation: "
                f"set hardware.hung_after_s={_above(hardware.nccl_timeout_s)}"
            )
    export_s = 2 * MASTER * shape.parameters / assumptions.disk_bytes_per_s
    if export_s > hardware.export_timeout_s:
        yield (
            f"the conversion of a checkpoint to a model takes about {export_s:,.0f} s, but its limit is "
            f"hardware.export_timeout_s = {hardware.export_timeout_s:,.0f}: set "
            f"hardware.export_timeout_s={_above(export_s)}"
        )


def _saving_warnings(recipe: StageRecipe, saving: Saving) -> Iterator[str]:
    share = saving.save_s / (saving.save_s + saving.steps_between * saving.step_s)
    if share > _MOST_SAVING_SHARE:
        yield (
            f"saving checkpoints takes {percent(share, 0)} of the run's time ({saving.save_s:,.0f} s per checkpoint): "
            f"raise checkpoint.every_minutes = {recipe.checkpoint.every_minutes:g} or checkpoint.every = "
            f"{recipe.checkpoint.every}"
        )


def _judge_limit_warnings(recipe: StageRecipe) -> Iterator[str]:
    if recipe.judge.wait_s > MAX_WAIT_S:
        yield (
            f"judge.wait_s = {recipe.judge.wait_s:,.0f} has no effect beyond {MAX_WAIT_S:,.0f} s, because the judge "
            f"itself reports a program as lost after this time: set judge.wait_s={MAX_WAIT_S:.0f}"
        )


def queue_warnings(recipe: StageRecipe, judge: Judge) -> Iterator[str]:
    """Yields a warning if the judge has too few workers to serve all rollouts in flight at the same time."""
    if judge.workers is None or judge.workers < judge.cores:  # `judge_warnings` has a warning for this
        return
    wait_s = judge.in_flight * judge.program_s / judge.workers
    if wait_s > recipe.judge.wait_s:
        workers = math.ceil(judge.in_flight * judge.program_s / recipe.judge.wait_s)
        yield (
            f"{judge.in_flight:,} rollouts are in flight. If all rollouts call a tool at once, the last call waits "
            f"{wait_s:,.0f} s for one of the {judge.workers} workers, but a call is lost after judge.wait_s = "
            f"{recipe.judge.wait_s:,.0f}: give the judge at least {workers} workers, or raise judge.wait_s"
        )


def _count_warnings(shape: ModelShape, recipe: StageRecipe) -> Iterator[str]:
    rollout, optim, hardware = recipe.rollout, recipe.optim, recipe.hardware
    if shape.context is not None and recipe.longest > shape.context:
        yield (
            f"rollout.prompt_tokens + rollout.tokens = {recipe.longest:,} is more than the model's context of "
            f"{shape.context:,} tokens (max_position_embeddings in its config.json): lower rollout.tokens"
        )
    rollouts = rollout.prompts * rollout.rollouts
    if hardware.router == "verl" and hardware.engines > 1 and rollouts > STICKY_REQUESTS:
        yield (
            f"a step has {rollouts:,} rollouts, but VERL's router remembers the engine of only the last "
            f"{STICKY_REQUESTS:,} rollouts, so the KV caches of the other rollouts are computed again in each turn: "
            "set hardware.router=sessions"
        )
    if optim.state == "fresh" and optim.warmup_steps > recipe.steps:
        yield (
            f"optim.warmup_steps = {optim.warmup_steps} is more than steps = {recipe.steps}, so the learning rate "
            f"never reaches optim.lr: lower optim.warmup_steps"
        )


def _above(seconds: float) -> int:
    """Returns a limit for a duration: 1.5 times the duration, rounded up to a multiple of ten minutes."""
    return math.ceil(1.5 * seconds / _ROUND_S) * _ROUND_S
