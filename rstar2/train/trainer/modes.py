"""Modes of training: rollouts are sampled before each update, as in the paper, or while earlier updates run.

If rollouts are sampled while earlier updates run, one of VERL's asynchronous trainers is used.
"""

from __future__ import annotations

import math
from typing import Any, Literal

from pydantic import Field

from rstar2.config import Strict

Mode = Literal["sync", "colocate_async", "separate_async"]


class AsyncSettings(Strict):
    """Settings of the asynchronous modes, in which rollouts start before the step that trains on them. They have no
    effect in mode sync."""

    batches_ahead: float = Field(1.0, gt=0)
    """Number of batches of problems that are rolled out ahead of training. One batch is `rollout.prompts` problems."""
    max_steps: int = Field(8, ge=2)
    """Maximum age of a problem's rollouts, in steps. The age counts every step from the step in which the rollouts
    start to the step that trains on them, both included."""
    too_old: Literal["drop", "wait"] = "drop"
    """What happens to rollouts that would become older than `max_steps`. drop: the problem is left out with all its
    rollouts, and another problem replaces it. wait: a step waits until these rollouts are finished, so that they do not
    become too old."""
    rollout_nodes: int = Field(1, ge=1)
    """Number of machines that only generate rollouts, in addition to `hardware.nodes`. Each additional machine has
    `hardware.gpus_per_node` GPUs. The key has an effect only in mode separate_async."""


def mode_fault(mode: Mode, settings: AsyncSettings, device: str, router: str) -> str:
    """Returns the reason why a mode cannot work or would waste every step. Returns an empty text if the mode works.

    Args:
        device: `hardware.device` of the recipe.
        router: `hardware.router` of the recipe.
    """
    if mode == "sync":
        return ""
    if mode == "separate_async" and device == "cpu":
        return (
            'mode = "separate_async" needs GPUs, because VERL sends the weights by NCCL: on a CPU, use mode = '
            '"colocate_async"'
        )
    if device == "cuda" and router == "verl":
        return (
            f'mode = "{mode}" needs hardware.router = "sessions" on GPUs: VERL\'s own router sends any number of '
            "requests to an engine, and an update that has to interrupt more than 1,000 requests never begins"
        )
    ahead = settings.batches_ahead
    if settings.too_old == "drop" and ahead + 1 > settings.max_steps:
        return (
            f"asynchronous.batches_ahead = {ahead:g} needs asynchronous.max_steps of at least {math.ceil(ahead) + 1}, "
            f"not {settings.max_steps}: otherwise rollouts are too old before a step can train on them"
        )
    return ""


def verl_keys(mode: Mode, settings: AsyncSettings, gpus_per_node: int) -> dict[str, Any]:
    """Returns the entries of VERL's config that select a mode."""
    sampler = "trainer.v1.sampler"
    if mode == "sync":
        return {f"{sampler}.custom_sampler.name": "SelectingReplayBuffer"}
    keys: dict[str, Any] = {
        "trainer.v1.trainer_mode": mode,
        f"trainer.v1.{mode}.num_warmup_batches": settings.batches_ahead,
        f"{sampler}.custom_sampler.name": "SelectingReplayBufferAsync",
        f"{sampler}.max_off_policy_threshold": settings.max_steps,
        f"{sampler}.max_off_policy_strategy": settings.too_old,
    }
    if mode == "separate_async":
        keys |= {
            # A selection needs all groups of a step, so a step is one update. After each step, the engines get the
            # new weights.
            "trainer.v1.separate_async.parameter_sync_step": 1,
            "actor_rollout_ref.hybrid_engine": False,
            "actor_rollout_ref.rollout.nnodes": settings.rollout_nodes,
            "actor_rollout_ref.rollout.n_gpus_per_node": gpus_per_node,
            "actor_rollout_ref.rollout.checkpoint_engine.backend": "nccl",
        }
    return keys
