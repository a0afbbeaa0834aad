"""VERL's FSDP engine of a language model, on a CPU: other micro-batches, and memory given back between them.

VERL mixes long and short rows, so that each micro-batch takes the same time on every GPU, and counts tokens without
padding, which it removes there. On a CPU rows are filled up to the longest of their micro-batch. Most of VERL's
micro-batches would be padding there, and their memory without a bound.
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
    """As VERL's `prepare_micro_batches`: the micro-batches, and for each the rows of `data` that it holds.

    All ranks of `dp_group` make equally many. Where the recipe counts rows and not tokens, they are VERL's.
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
    """The groups, of which the largest are halved until there are `count`."""
    groups = list(groups)
    while len(groups) < count:
        largest = max(range(len(groups)), key=lambda i: len(groups[i]))
        group = groups[largest]
        groups[largest : largest + 1] = [group[: len(group) // 2], group[len(group) // 2 :]]
    return groups


transformer_impl.prepare_micro_batches = padded_micro_batches


@EngineRegistry.register(model_type="language_model", backend=["fsdp", "fsdp2"], device=NAME)
class CpuTrainingEngine(FSDPEngineWithLMHead):  # type: ignore[misc]
    """VERL's engine for CUDA, which works where every tensor is on the CPU.

    VERL's value models have none: no algorithm here trains a critic.
    """

    def forward_step(self, *args: Any, **kwargs: Any) -> Any:
        """A micro-batch's loss and outputs.

        The one before had other lengths, and this one's activations would not fit the blocks that it left.
        """
        free_unused()
        return super().forward_step(*args, **kwargs)
