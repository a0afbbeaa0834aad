"""Sizes that VERL and vLLM fix, and the recipes that do not fit them, which they would refuse late.

The numbers are VERL 0.9.1's; a test compares them with its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

STICKY_REQUESTS = 10_000
"""How many requests VERL's router remembers an engine for."""
BATCHED_TOKENS = 8192
"""Tokens that an engine computes at a time, by default."""
QUEUED_SAMPLES = 100_000
"""Prompts and rollouts that VERL's queue holds, by default."""
_BATCHED = "actor_rollout_ref.rollout.max_num_batched_tokens"
_QUEUED = "transfer_queue.backend.SimpleStorage.total_storage_size"


def engine_fault(sequences_in_flight: int, verl: Mapping[str, Any]) -> str:
    """Says why vLLM would not start with the recipe's number of rollouts at a time; empty if it would."""
    tokens = verl.get(_BATCHED, BATCHED_TOKENS)
    if isinstance(tokens, int) and sequences_in_flight > tokens:
        return (
            f"hardware.sequences_in_flight = {sequences_in_flight} is more than the {tokens} tokens that vLLM computes "
            f"at a time, which it refuses: lower it, or set verl.{_BATCHED}={sequences_in_flight}"
        )
    return ""


def queue_fault(prompts: int, rollouts: int, batches: float, verl: Mapping[str, Any]) -> str:
    """Why VERL's queue would overflow in a step; empty if it does not.

    Args:
        rollouts: of each prompt.
        batches: how many steps' prompts there are at a time.
    """
    room = verl.get(_QUEUED, QUEUED_SAMPLES)
    samples = int(batches * prompts * (1 + rollouts))
    if isinstance(room, int) and samples > room:
        return (
            f"{samples:,} prompts and rollouts are under way at a time, and VERL's queue holds {room:,}: lower "
            f"rollout.prompts or rollout.rollouts, or set verl.{_QUEUED}={2 * samples}"
        )
    return ""
