"""Attention for packed sequences by PyTorch's own kernels, registered with transformers under `PACKED_ATTENTION`.

VERL packs the sequences of a micro-batch into one row without padding; position ids start again at 0 with each. For
such a row transformers' `sdpa` builds a mask of tokens times tokens, which takes memory, and with which PyTorch cannot
use its flash attention. Here each sequence is attended to by itself, so no mask is needed.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from rstar2.train.attention import PACKED_ATTENTION


def packed_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    position_ids: torch.Tensor,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Causal attention within each sequence of one row; the interface is that of transformers' attention functions.

    Raises:
        ValueError: the row is not packed, or the model limits how far back a token attends.
    """
    if attention_mask is not None or position_ids.dim() != 2 or len(position_ids) != 1:
        raise ValueError("packed attention takes one row of packed sequences, with position ids and no mask")
    if sliding_window is not None:
        raise ValueError(f"packed attention attends to a whole sequence, not to {sliding_window} tokens")
    starts = (position_ids[0] == 0).nonzero().flatten().tolist()
    lengths = [end - start for start, end in zip(starts, [*starts[1:], query.shape[2]], strict=True)]
    # `split` and not slices: the backward pass of a slice fills a tensor of the whole row.
    parts = zip(*(tensor.split(lengths, dim=2) for tensor in (query, key, value)), strict=True)
    attended = [
        scaled_dot_product_attention(
            part_query,
            part_key,
            part_value,
            dropout_p=dropout,
            is_causal=True,
            scale=scaling,
            enable_gqa=query.shape[1] != key.shape[1],
        ).transpose(1, 2)
        for part_query, part_key, part_value in parts
    ]
    return torch.cat(attended, dim=1), None


AttentionInterface.register(PACKED_ATTENTION, packed_attention)
