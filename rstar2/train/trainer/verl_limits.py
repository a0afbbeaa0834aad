"""Limits in VERL and vLLM, and checks that a recipe does not exceed the limits. Without the checks, VERL or vLLM would
fail much later.

The numbers are the limits of VERL 0.9.1. A test checks that the numbers are the same as in VERL.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

STICKY_REQUESTS = 10_000
"""Maximum number of requests whose engine VERL's router remembers."""
BATCHED_TOKENS = 8192
"""Default of VERL's `max_num_batched_tokens`: the maximum number of tokens that an engine processes at a time."""
QUEUED_SAMPLES = 100_000
"""Default for the maximum number of prompts and rollouts in VERL's queue."""
_BATCHED = "actor_rollout_ref.rollout.max_num_batched_tokens"
_QUEUED = "transfer_queue.backend.SimpleStorage.total_storage_size"


def engine_fault(sequences_in_flight: int, verl: Mapping[str, Any]) -> str:
    """Returns the reason why vLLM would not start with the recipe's `hardware.sequences_in_flight`, or an empty text if
    vLLM would start.

    Args:
        sequences_in_flight: the recipe's `hardware.sequences_in_flight`.
        verl: VERL's keys that the recipe sets.
    """
    tokens = verl.get(_BATCHED, BATCHED_TOKENS)
    if isinstance(tokens, int) and sequences_in_flight > tokens:
        return (
            f"hardware.sequences_in_flight = {sequences_in_flight} is more than the {tokens} tokens that vLLM computes "
            f"at a time, so vLLM would not start: lower it, or set verl.{_BATCHED}={sequences_in_flight}"
        )
    return ""


def queue_fault(prompts: int, rollouts: int, batches: float, verl: Mapping[str, Any]) -> str:
    """Returns the reason why VERL's queue would overflow in a step, or an empty text if it would not overflow.

    Args:
        prompts: number of prompts per step.
        rollouts: number of rollouts per prompt.
        batches: number of steps whose prompts are in the queue at the same time.
        verl: VERL's keys that the recipe sets.
    """
    room = verl.get(_QUEUED, QUEUED_SAMPLES)
    samples = int(batches * prompts * (1 + rollouts))
    if isinstance(room, int) and samples > room:
        return (
            f"VERL's queue would hold {samples:,} prompts and rollouts at a time, but has room for {room:,}: lower "
            f"rollout.prompts or rollout.rollouts, or set verl.{_QUEUED}={2 * samples}"
        )
    return ""
