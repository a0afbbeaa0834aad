"""Limits in VERL and vLLM, and checks for recipes that exceed them. VERL and vLLM themselves would fail much later.

The numbers are those of VERL 0.9.1. A test compares these numbers with VERL's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

STICKY_REQUESTS = 10_000
"""Number of requests for which VERL's router remembers the engine."""
BATCHED_TOKENS = 8192
"""Default limit for the tokens that an engine computes at a time."""
QUEUED_SAMPLES = 100_000
"""Default limit for the prompts and rollouts in VERL's queue."""
_BATCHED = "actor_rollout_ref.rollout.max_num_batched_tokens"
_QUEUED = "transfer_queue.backend.SimpleStorage.total_storage_size"


def engine_fault(sequences_in_flight: int, verl: Mapping[str, Any]) -> str:
    """Says why vLLM would not start with the recipe's `hardware.sequences_in_flight`; empty if vLLM would start.

    Args:
        sequences_in_flight: the recipe's value.
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
    """Says why VERL's queue would overflow in a step; empty if the queue would not overflow.

    Args:
        prompts: prompts per step.
        rollouts: rollouts per prompt.
        batches: number of steps whose prompts are in the queue at the same time.
        verl: VERL's keys that the recipe sets.
    """
    room = verl.get(_QUEUED, QUEUED_SAMPLES)
    samples = int(batches * prompts * (1 + rollouts))
    if isinstance(room, int) and samples > room:
        return (
            f"{samples:,} prompts and rollouts are under way at a time, but VERL's queue has room for {room:,}: lower "
            f"rollout.prompts or rollout.rollouts, or set verl.{_QUEUED}={2 * samples}"
        )
    return ""
