"""The keys of a recipe that may differ between two starts of a run: they decide how it runs, not what is learned."""

from __future__ import annotations

import contextlib
from collections.abc import Set
from typing import Any

from pydantic import BaseModel, ValidationError

from rstar2.config import dotted
from rstar2.errors import UserError, first_few
from rstar2.train.recipe import replaced_keys

MAY_CHANGE = frozenset(
    {
        "hardware.gpu",
        "hardware.attention",
        "hardware.engine_memory_share",
        "hardware.sequences_in_flight",
        "hardware.offload",
        "hardware.gradient_checkpointing",
        "hardware.nccl_timeout_s",
        "hardware.worker_start_s",
        "hardware.hung_after_s",
        "hardware.export_timeout_s",
        "rollout.max_failed_share",
        "judge.packages",
        "judge.isolation",
        "judge.wait_s",
        "judge.max_lost_share",
        "judge.stop_after_s",
        "checkpoint.every",
        "checkpoint.every_minutes",
        "checkpoint.keep",
        "checkpoint.export_every",
        "checkpoint.keep_rollouts",
        "checkpoint_every",
        "checkpoint_every_minutes",
        "validation.every",
        "choose",
        "alarms",
        "keep_filter_traces",
        "traces_per_step",
        "trackers",
        "trace_trackers",
    }
)
"""Keys and whole tables, of a stage's recipe or of SFT's. A key that is not named is compared."""

ADDED: dict[str, Any] = {
    "curriculum": {"name": "uniform"},
    "solved_by": "samples",
}
"""Keys that runs of earlier versions lack, with the values by which these runs were made."""


def compared(recipe: dict[str, Any], model: type[BaseModel] | None = None) -> dict[str, Any]:
    """A recipe as JSON, or a part of one, without the keys that may change; VERL's are dotted, however written.

    Raises a UserError if it is that of an earlier version, whose keys this one does not read.

    Args:
        model: that of a whole recipe; None for a part of one. Keys that are younger than the run then have their
            defaults, with which training does what it did before it had the key.
    """
    if old := replaced_keys(recipe):
        raise UserError(
            f"the run was begun by an earlier version of rstar2; its recipe has keys that are no longer read: "
            f"{first_few([key for key, _ in old])}",
            "Finish it with that version, or give another folder with --run.",
        )
    if model is not None:
        # One that is refused by now is compared as it stands.
        with contextlib.suppress(ValidationError, UserError):
            recipe = model.model_validate(recipe).model_dump(mode="json")
    verl = {"verl": dotted(recipe["verl"])} if "verl" in recipe else {}
    made_by = {key: value for key, value in recipe.items() if key not in ADDED or value != ADDED[key]}
    return without({**made_by, **verl}, MAY_CHANGE)


def without(values: dict[str, Any], keys: Set[str], table: str = "") -> dict[str, Any]:
    """Nested tables without the dotted `keys`, and without the tables that this empties."""
    kept = {}
    for key, value in values.items():
        name = f"{table}{key}"
        if name in keys:
            continue
        inner = without(value, keys, f"{name}.") if isinstance(value, dict) else value
        if inner or not value:
            kept[key] = inner
    return kept
