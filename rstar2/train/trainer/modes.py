"""When rollouts are made: before an update, as in the paper, or ahead of it, by VERL's asynchronous trainers."""

from __future__ import annotations

import math
from typing import Any, Literal

from pydantic import Field

from rstar2.config import Strict

Mode = Literal["sync", "colocate_async", "separate_async"]


class AsyncSettings(Strict):
    """How far rollouts run ahead of the update; without effect if `mode` is sync."""

    batches_ahead: float = Field(1.0, gt=0)
    """Number of problems handed out ahead of the step they are meant for, in multiples of `rollout.prompts`."""
    max_steps: int = Field(8, ge=2)
    """Steps that a problem's rollouts may be under way, counting the first and the last."""
    too_old: Literal["drop", "wait"] = "drop"
    """What happens to a problem that exceeds `max_steps`. drop: its rollouts are left out, and another problem is
    handed out. wait: before that point, a step waits until its rollouts are finished."""
    rollout_nodes: int = Field(1, ge=1)
    """Machines with `hardware.gpus_per_node` GPUs that only generate, in addition to `hardware.nodes`. Only for
    separate_async."""


def mode_fault(mode: Mode, settings: AsyncSettings, device: str, router: str) -> str:
    """Why a mode would not work, or waste every step, on a device and with a router; empty where it works."""
    if mode == "sync":
        return ""
    if mode == "separate_async" and device == "cpu":
        return (
            'mode = "separate_async" needs GPUs: VERL sends weights between GPUs by NCCL and has no way to do so on a '
            'CPU; use mode = "colocate_async" there'
        )
    if device == "cuda" and router == "verl":
        return (
            f'mode = "{mode}" needs hardware.router = "sessions" on GPUs: VERL\'s own router sends an engine any '
            "number of requests, and an update that has to interrupt more than 1,000 of them never begins"
        )
    ahead = settings.batches_ahead
    if settings.too_old == "drop" and ahead + 1 > settings.max_steps:
        return (
            f"asynchronous.batches_ahead = {ahead:g} needs asynchronous.max_steps of at least {math.ceil(ahead) + 1}, "
            f"not {settings.max_steps}: problems would be too old before their step"
        )
    return ""


def verl_keys(mode: Mode, settings: AsyncSettings, gpus_per_node: int) -> dict[str, Any]:
    """VERL's keys of a mode."""
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
            # Groups are selected over a whole step, so a step is one update, and each is sent to the engines.
            "trainer.v1.separate_async.parameter_sync_step": 1,
            "actor_rollout_ref.hybrid_engine": False,
            "actor_rollout_ref.rollout.nnodes": settings.rollout_nodes,
            "actor_rollout_ref.rollout.n_gpus_per_node": gpus_per_node,
            "actor_rollout_ref.rollout.checkpoint_engine.backend": "nccl",
        }
    return keys
