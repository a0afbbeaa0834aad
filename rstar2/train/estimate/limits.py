"""Compares time limits with planned durations, and sizes of caches with counts, before anything starts.

Two parts of a training know one number each, and neither knows the other's. Each pair that does not fit yields one
sentence with the key to change. Recipes that VERL or vLLM would refuse, after minutes or after a step of rollouts, are
refused by `rstar2.train.trainer.verl_limits`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from rstar2.judge.schema import MAX_WAIT_S
from rstar2.model_shape import ModelShape
from rstar2.train.estimate.memory import MASTER
from rstar2.train.estimate.work import Assumptions, Disk, Judge, Saving, Step
from rstar2.train.recipe import Hardware, StageRecipe
from rstar2.train.trainer.verl_limits import STICKY_REQUESTS

BF16 = 2
_ROUND_S = 600
_MOST_SAVING_SHARE = 0.25
"""The share of a run's time that saving may take before the user is warned."""


@dataclass(frozen=True)
class Pieces:
    """Seconds of the longest parts of a stage during which there is no sign of life, see `SignsOfLife`."""

    start: float
    """From a process's start to the first weights: Ray's limit for a process, the model, and a checkpoint to resume."""
    rollout: float
    """One rollout of full length, in which one call waits `judge.wait_s` for the judge."""
    micro_batch: float
    """One micro-batch of the update."""


def stage_pieces(
    shape: ModelShape, recipe: StageRecipe, step: Step, disk: Disk, given: Assumptions
) -> Pieces:
    hardware = recipe.hardware
    read_s = (disk.checkpoint + disk.queue + BF16 * shape.parameters) / given.disk_bytes_per_s
    most_tokens = step.kept_rollouts * recipe.longest / hardware.ranks
    return Pieces(
        start=hardware.worker_start_s + read_s,
        rollout=recipe.rollout.tokens * step.token_s + recipe.judge.wait_s,
        micro_batch=min(recipe.update_tokens, most_tokens) / step.update_tokens_per_s,
    )


def limit_warnings(
    shape: ModelShape, recipe: StageRecipe, pieces: Pieces, saving: Saving, given: Assumptions
) -> Iterator[str]:
    """One sentence for each limit of an RL stage that is shorter than what it has to allow, or has no effect."""
    hardware = recipe.hardware
    named = {
        "starting the trainer": pieces.start,
        "one rollout of full length, with the judge away,": pieces.rollout,
        "one micro-batch of the update": pieces.micro_batch,
    }
    what, longest = max(named.items(), key=lambda item: item[1])
    if longest > hardware.hung_after_s:
        yield (
            f"{what} may take {longest:,.0f} s without a sign of life, and after hardware.hung_after_s = "
            f"{hardware.hung_after_s:,.0f} the trainer is stopped as hung: set hardware.hung_after_s={_above(longest)}"
        )
    yield from time_limit_warnings(shape, hardware, saving, pieces.micro_batch, given)
    yield from _saving_warnings(recipe, saving)
    yield from _judge_limit_warnings(recipe)
    yield from _count_warnings(shape, recipe)


def time_limit_warnings(
    shape: ModelShape, hardware: Hardware, saving: Saving, micro_batch_s: float, given: Assumptions
) -> Iterator[str]:
    """The limits that an RL stage and SFT share."""
    if hardware.device == "cuda":
        waits = max(saving.save_s, micro_batch_s)
        if waits > hardware.nccl_timeout_s:
            yield (
                f"ranks may wait {waits:,.0f} s for one another, in saving a checkpoint or in a micro-batch, and after "
                f"hardware.nccl_timeout_s = {hardware.nccl_timeout_s:,} the trainer ends: set "
                f"hardware.nccl_timeout_s={_above(waits)}"
            )
        if hardware.nccl_timeout_s >= hardware.hung_after_s:
            yield (
                f"hardware.nccl_timeout_s = {hardware.nccl_timeout_s:,} is not below hardware.hung_after_s = "
                f"{hardware.hung_after_s:,.0f}, so a rank that hangs is stopped before NCCL can name the operation: "
                f"set hardware.hung_after_s={_above(hardware.nccl_timeout_s)}"
            )
    export_s = 2 * MASTER * shape.parameters / given.disk_bytes_per_s
    if export_s > hardware.export_timeout_s:
        yield (
            f"making a model of a checkpoint takes about {export_s:,.0f} s, and hardware.export_timeout_s = "
            f"{hardware.export_timeout_s:,.0f}: set hardware.export_timeout_s={_above(export_s)}"
        )


def _saving_warnings(recipe: StageRecipe, saving: Saving) -> Iterator[str]:
    share = saving.save_s / (saving.save_s + saving.steps_between * saving.step_s)
    if share > _MOST_SAVING_SHARE:
        yield (
            f"saving checkpoints takes {share:.0%} of the time, {saving.save_s:,.0f} s each: raise "
            f"checkpoint.every_minutes = {recipe.checkpoint.every_minutes:g} or checkpoint.every = "
            f"{recipe.checkpoint.every}"
        )


def _judge_limit_warnings(recipe: StageRecipe) -> Iterator[str]:
    if recipe.judge.wait_s > MAX_WAIT_S:
        yield (
            f"judge.wait_s = {recipe.judge.wait_s:,.0f} has no effect beyond {MAX_WAIT_S:,.0f} s, after which the "
            f"judge itself gives a program up: set judge.wait_s={MAX_WAIT_S:.0f}"
        )


def queue_warnings(recipe: StageRecipe, judge: Judge) -> Iterator[str]:
    """Whether the tool calls of all rollouts in flight are run before they give up, if they come at once."""
    if judge.workers is None or judge.workers < judge.cores:  # `judge_warnings` says so already
        return
    wait_s = judge.in_flight * judge.program_s / judge.workers
    if wait_s > recipe.judge.wait_s:
        workers = math.ceil(judge.in_flight * judge.program_s / recipe.judge.wait_s)
        yield (
            f"{judge.in_flight:,} rollouts are in flight, and if all call a tool at once, the last waits "
            f"{wait_s:,.0f} s for one of {judge.workers} workers; after judge.wait_s = {recipe.judge.wait_s:,.0f} the "
            f"call is lost: give the judge at least {workers} workers, or raise judge.wait_s"
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
            f"VERL's router remembers the engines of the last {STICKY_REQUESTS:,} rollouts, and a step has "
            f"{rollouts:,}: the others' KV caches are computed again in each turn. Set hardware.router=sessions"
        )
    if optim.state == "fresh" and optim.warmup_steps > recipe.steps:
        yield (
            f"optim.warmup_steps = {optim.warmup_steps} is more than steps = {recipe.steps}, so the learning rate "
            f"never reaches optim.lr: lower optim.warmup_steps"
        )


def _above(seconds: float) -> int:
    """A limit for what takes about this long: half as much again, in steps of ten minutes."""
    return math.ceil(1.5 * seconds / _ROUND_S) * _ROUND_S
