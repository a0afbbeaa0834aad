"""Checks the free disk space before VERL writes a checkpoint. Every VERL process imports this module.

Without this check, VERL would fail while it writes a checkpoint, and leave the truncated checkpoint on the full disk.
torch's error message does not name the disk.
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

from rstar2.errors import Failure, RStarError, UserError
from rstar2.train.records.final_error import write_final_error
from rstar2.train.trainer.disk_space import check_disk_space
from rstar2.train.trainer.saving import STAGE_FOLDER


def own_bytes(manager: FSDPCheckpointManager) -> int:
    """Returns the number of bytes of the weights and the optimizer state that this rank saves."""
    size = 0
    if manager.should_save_model:
        size += _bytes([*manager.model.parameters(), *manager.model.buffers()])
    if manager.should_save_optimizer:
        size += sum(_bytes(state.values()) for state in manager.optimizer.state.values())
    return size


def _bytes(values: Iterable[Any]) -> int:
    """Returns the number of bytes of all tensors in `values`. If a tensor is sharded over ranks, only this rank's shard
    is counted."""
    local = (each.to_local() if hasattr(each, "to_local") else each for each in values)
    return sum(each.numel() * each.element_size() for each in local if isinstance(each, torch.Tensor))


def _space_fault(
    manager: FSDPCheckpointManager, checkpoint: Path, size: int, step: int, keep: int | None
) -> RStarError | None:
    """Removes the checkpoints that VERL would remove before it writes the next checkpoint. Returns an error if the next
    checkpoint cannot be written, or None if it can be written.

    Any exception becomes a Failure that all ranks raise. If only this rank raised the exception, the other ranks would
    wait until NCCL times out.
    """
    try:
        # VERL removes them itself, but only after this check. The space that this frees must count.
        manager.ensure_checkpoint_capacity(keep)
        return check_disk_space(checkpoint, size, step)
    except Exception as error:  # noqa: BLE001  (every rank raises it)
        return Failure(
            f"the disk space for the checkpoint of step {step} cannot be checked: {type(error).__name__}: {error}",
            f"Check the disk of {checkpoint}, then run the same command: it continues from the last checkpoint.",
        )


def _checking_space(original: Callable[..., None]) -> Callable[..., None]:
    """Wraps `FSDPCheckpointManager.save_checkpoint`. If the checkpoint does not fit on the disk, all ranks raise an
    error before any rank writes."""

    @functools.wraps(original)
    def save(
        self: FSDPCheckpointManager,
        local_path: str | None,
        hdfs_path: str | None = None,
        global_step: int = 0,
        max_ckpt_to_keep: int | None = None,
    ) -> None:
        if local_path is not None:
            sizes: list[int] = [0] * torch.distributed.get_world_size()
            torch.distributed.all_gather_object(sizes, own_bytes(self))
            faults: list[RStarError | None] = [None]
            if self.rank == 0:
                folder = Path(local_path).absolute()
                faults[0] = _space_fault(self, folder, sum(sizes), global_step, max_ckpt_to_keep)
                if isinstance(faults[0], UserError) and STAGE_FOLDER in os.environ:
                    write_final_error(Path(os.environ[STAGE_FOLDER]), faults[0])
            torch.distributed.broadcast_object_list(faults, src=0)
            if faults[0] is not None:
                raise faults[0]
        original(self, local_path, hdfs_path, global_step, max_ckpt_to_keep)

    return save


FSDPCheckpointManager.save_checkpoint = _checking_space(FSDPCheckpointManager.save_checkpoint)
