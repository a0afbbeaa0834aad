"""Recipe keys that may change when a run is resumed. The changeable keys affect how the run proceeds, not what the
policy learns."""

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
"""Keys and whole tables that may change, in the recipe of a stage or of SFT. All keys that are not listed must stay the
same."""

ADDED: dict[str, Any] = {
    "curriculum": {"name": "uniform"},
    "solved_by": "samples",
}
"""Keys that the recipes of earlier versions do not have, with the values that runs of these versions effectively
used."""


def compared(recipe: dict[str, Any], model: type[BaseModel] | None = None) -> dict[str, Any]:
    """Returns the part of a recipe that must stay the same when a run is resumed. In the result, VERL's keys are in
    dotted form.

    Args:
        recipe: a recipe, or a part of one, as JSON.
        model: the pydantic model of the recipe, or None if `recipe` is only a part of a recipe. If a pydantic model is
            given, keys that were added to rstar2 after the run began get their defaults. The default of an added key
            always stands for the earlier behaviour.

    Raises:
        UserError: the recipe has keys of an earlier version, which this version does not read.
    """
    if old := replaced_keys(recipe):
        raise UserError(
            f"the run was begun by an earlier version of rstar2, and its recipe has keys that this version does not "
            f"read: {first_few([key for key, _ in old])}",
            "Finish the run with that version, or give another folder with --run.",
        )
    if model is not None:
        # A recipe that this version would reject is compared without the defaults.
        with contextlib.suppress(ValidationError, UserError):
            recipe = model.model_validate(recipe).model_dump(mode="json")
    verl = {"verl": dotted(recipe["verl"])} if "verl" in recipe else {}
    not_default = {key: value for key, value in recipe.items() if key not in ADDED or value != ADDED[key]}
    return without({**not_default, **verl}, MAY_CHANGE)


def without(values: dict[str, Any], keys: Set[str], table: str = "") -> dict[str, Any]:
    """Returns nested tables without the dotted `keys`, and without tables that become empty."""
    remaining = {}
    for key, value in values.items():
        name = f"{table}{key}"
        if name in keys:
            continue
        inner = without(value, keys, f"{name}.") if isinstance(value, dict) else value
        if inner or not value:
            remaining[key] = inner
    return remaining
