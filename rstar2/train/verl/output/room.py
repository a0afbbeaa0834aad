"""Loaded into every VERL process: no checkpoint is begun for which the disk has no room.

VERL finds out while it writes: it leaves a checkpoint that is cut short, which takes the room that is left, and torch's
message does not name the disk.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
import torch.distributed
from verl.utils.checkpoint.fsdp_checkpoint_manager import FSDPCheckpointManager

from rstar2.errors import RStarError
from rstar2.train.records.final_error import write_final_error
from rstar2.train.trainer.room import check_room
from rstar2.train.trainer.saving import STAGE_FOLDER


def own_bytes(manager: FSDPCheckpointManager) -> int:
    """Bytes of the weights and optimizer state that this rank saves."""
    size = 0
    if manager.should_save_model:
        size += _bytes([*manager.model.parameters(), *manager.model.buffers()])
    if manager.should_save_optimizer:
        size += sum(_bytes(state.values()) for state in manager.optimizer.state.values())
    return size


def _bytes(values: Iterable[Any]) -> int:
    """Bytes of the tensors among the values: of a tensor that is split over ranks, the part of this rank."""
    local = (each.to_local() if hasattr(each, "to_local") else each for each in values)
    return sum(each.numel() * each.element_size() for each in local if isinstance(each, torch.Tensor))


def _with_room(original: Callable[..., None]) -> Callable[..., None]:
    """Stands in for `FSDPCheckpointManager.save_checkpoint`: every rank raises before any writes, or none does."""

    @functools.wraps(original)
    def save(
        self: FSDPCheckpointManager,
        local_path: str | None,
        hdfs_path: str | None = None,
        global_step: int = 0,
        max_ckpt_to_keep: int | None = None,
    ) -> None:
        if local_path is not None:
            if self.rank == 0:
                # VERL does so itself before it writes; then the room counts here too.
                self.ensure_checkpoint_capacity(max_ckpt_to_keep)
            sizes: list[int] = [0] * torch.distributed.get_world_size()
            torch.distributed.all_gather_object(sizes, own_bytes(self))
            faults: list[RStarError | None] = [None]
            if self.rank == 0:
                faults[0] = check_room(Path(local_path).absolute(), sum(sizes), global_step)
                if faults[0] is not None and STAGE_FOLDER in os.environ:
                    write_final_error(Path(os.environ[STAGE_FOLDER]), faults[0])
            torch.distributed.broadcast_object_list(faults, src=0)
            if faults[0] is not None:
                raise faults[0]
        original(self, local_path, hdfs_path, global_step, max_ckpt_to_keep)

    return save


FSDPCheckpointManager.save_checkpoint = _with_room(FSDPCheckpointManager.save_checkpoint)
