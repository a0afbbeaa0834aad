"""Checks that a recipe's GPUs are here before anything starts, and takes the laptop profile where that fits."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from rstar2.doctor.hardware import gpu_names
from rstar2.errors import UserError
from rstar2.train.recipe import Hardware

LAPTOP = "laptop"
TINY_BYTES = 100 * 2**20
"""Weights of at most so many bytes, 25 million parameters in fp32, are trained on a CPU in sensible time."""


def default_profile(model: Path) -> str | None:
    """The laptop profile for a tiny model on a machine without GPUs and without a Ray cluster; None otherwise."""
    weights = sum(file.stat().st_size for file in model.glob("*.safetensors"))
    return LAPTOP if 0 < weights <= TINY_BYTES and not _elsewhere() and not gpu_names() else None


def check_hardware(wanted: Iterable[Hardware]) -> None:
    """Refuse to start on one machine without the GPUs that a recipe asks of it.

    Raises:
        UserError: it has none, or fewer than `gpus_per_node`.
    """
    needed = max(
        (each.gpus_per_node for each in wanted if each.device == "cuda" and each.nodes == 1), default=0
    )
    if not needed or _elsewhere():
        return
    here = len(gpu_names())
    if here >= needed:
        return
    has = "it has none" if not here else f"it has {here}"
    if here:
        hint = f"Use what is here: --set hardware.gpus_per_node={here}; or another machine."
    else:
        hint = f"A tiny model trains on the CPU: --profile {LAPTOP}. A Ray cluster is used where RAY_ADDRESS names it."
    raise UserError(f"the recipe needs {needed} GPUs on this machine, and {has}", hint)


def _elsewhere() -> bool:
    """Whether training runs on a Ray cluster, whose GPUs this machine does not see."""
    return bool(os.environ.get("RAY_ADDRESS"))
