"""What the GPUs of a recipe have to divide without a remainder.

VERL finds out in the first update, after a whole step of rollouts, or trains on other batches than it was told.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rstar2.train.recipe import Hardware


def hardware_fault(hardware: Hardware) -> str:
    """Why the GPUs cannot be split as a recipe says; empty where they can."""
    if hardware.device == "cpu" and hardware.nodes > 1:
        return f'hardware.nodes = {hardware.nodes}, but hardware.device = "cpu" trains on one machine'
    if hardware.gpus_per_node % hardware.tensor_parallel:
        # Ray takes the GPUs of an engine of ours from one node.
        return (
            f"the hardware.gpus_per_node = {hardware.gpus_per_node} GPUs of a node cannot be split into engines of "
            f"hardware.tensor_parallel = {hardware.tensor_parallel}"
        )
    if hardware.ranks % hardware.sequence_parallel:
        return (
            f"{_ranks(hardware)} cannot be split into groups of hardware.sequence_parallel = "
            f"{hardware.sequence_parallel}"
        )
    return ""


def batch_fault(hardware: Hardware, size: int, what: str) -> str:
    """Why an update of `size` samples, which `what` names with its keys, cannot be split; empty where it can."""
    split = hardware.sequence_parallel
    if size % (hardware.ranks // split) == 0:
        return ""
    groups = f", in groups of hardware.sequence_parallel = {split}" if split > 1 else ""
    return f"{what} cannot be split evenly over {_ranks(hardware)}{groups}"


def _ranks(hardware: Hardware) -> str:
    kind = "ranks" if hardware.device == "cpu" else "GPUs"
    keys = f"hardware.nodes = {hardware.nodes} times hardware.gpus_per_node = {hardware.gpus_per_node}"
    return f"{hardware.ranks} {kind} ({keys})"
