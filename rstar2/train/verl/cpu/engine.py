"""VERL's FSDP training engine, adapted to a CPU: a batch is divided into micro-batches differently than on a GPU, and
memory is freed before each micro-batch.

On a GPU, VERL removes padding and counts tokens without padding. VERL also mixes long and short rows, so that each
micro-batch takes the same time on every GPU. On a CPU, rows are padded to the longest row of their micro-batch. With
VERL's division of rows, micro-batches would be mostly padding, and nothing would limit the memory of a micro-batch.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed
from tensordict import TensorDict
from verl.utils import tensordict_utils as tu
from verl.workers.engine.base import EngineRegistry
from verl.workers.engine.fsdp import FSDPEngineWithLMHead, transformer_impl
from verl.workers.engine.utils import prepare_micro_batches

from rstar2.train.verl.cpu.like_lengths import rows_of_like_lengths
from rstar2.train.verl.cpu.platform import NAME, free_unused


def padded_micro_batches(
    data: TensorDict, dp_group: Any = None, **more: Any
) -> tuple[list[TensorDict], list[list[int]] | None]:
    """Divides a batch into micro-batches of rows with similar lengths. The function replaces VERL's
    `prepare_micro_batches`.

    All ranks of `dp_group` get the same number of micro-batches. If the recipe limits the number of rows per
    micro-batch instead of tokens, VERL's function divides the batch.

    Returns:
        The list of micro-batches, and a list with the row indices (in `data`) of each micro-batch.
    """
    if not tu.get_non_tensor_data(data=data, key="use_dynamic_bsz", default=True):
        micro_batches, rows = prepare_micro_batches(data, dp_group=dp_group, **more)
        return micro_batches, rows
    lengths = data["input_ids"].offsets().diff().tolist()
    groups = rows_of_like_lengths(lengths, int(data["max_token_len_per_gpu"]))
    if dp_group is not None:
        most = torch.tensor(len(groups))
        torch.distributed.all_reduce(most, op=torch.distributed.ReduceOp.MAX, group=dp_group)
        groups = divided(groups, int(most))
    return [tu.index_select_tensor_dict(data, group) for group in groups], groups


def divided(groups: list[list[int]], count: int) -> list[list[int]]:
    """Splits the largest group in half, repeatedly, until there are `count` groups."""
    groups = list(groups)
    while len(groups) < count:
        largest = max(range(len(groups)), key=lambda i: len(groups[i]))
        group = groups[largest]
        groups[largest : largest + 1] = [group[: len(group) // 2], group[len(group) // 2 :]]
    return groups


transformer_impl.prepare_micro_batches = padded_micro_batches


@EngineRegistry.register(model_type="language_model", backend=["fsdp", "fsdp2"], device=NAME)
class CpuTrainingEngine(FSDPEngineWithLMHead):  # type: ignore[misc]
    """VERL's engine for CUDA, registered for the CPU.

    No engine for VERL's value models is registered for the CPU, because no algorithm of rstar2 trains a critic.
    """

    def forward_step(self, *args: Any, **kwargs: Any) -> Any:
        """Computes a micro-batch's loss and outputs, after freeing unused memory.

        The rows of the previous micro-batch had other lengths, so the new activations would not fit into the memory
        blocks that the old activations occupied.
        """
        free_unused()
        return super().forward_step(*args, **kwargs)
