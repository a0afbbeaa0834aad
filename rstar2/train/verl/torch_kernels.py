"""Replaces flash-attn in VERL with PyTorch: attention over packed sequences, and the loss of each token.

Every VERL process imports this module if `hardware.attention` is "torch".

VERL packs the sequences of a micro-batch into one row without padding. The position ids of each sequence start at 0.
For a row of packed sequences, transformers' `sdpa` builds a mask of shape (tokens, tokens). The mask takes memory and
prevents PyTorch from using its flash attention. This module computes attention separately for each sequence, so it
needs no mask.

Without flash-attn's loss, VERL computes log-probabilities in a loop over single tokens, and stores the softmax of all
tokens in fp32. VERL's fused head is no alternative. It fails if FSDP2 shards the head separately from the model, which
FSDP2 does for all models with untied input and output embeddings.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface
from verl.utils import torch_functional

from rstar2.train.attention import PACKED_ATTENTION

ROWS = 512
"""The fp32 loss is computed in chunks of this many tokens."""


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
    """Computes causal attention within each sequence of a packed row.

    `packed_attention` has the interface of transformers' attention functions. `query`, `key` and `value` have the shape
    (1, heads, tokens, head size), and `position_ids` has the shape (1, tokens). The result has the shape (1, tokens,
    heads, head size).

    Raises:
        ValueError: the row is not packed, or the model has a sliding window.
    """
    if attention_mask is not None or position_ids.dim() != 2 or len(position_ids) != 1:
        raise ValueError(
            "packed attention needs one row of packed sequences, with position ids and without a mask"
        )
    if sliding_window is not None:
        raise ValueError(
            f"packed attention covers whole sequences, but the model has a sliding window of {sliding_window} tokens"
        )
    starts = (position_ids[0] == 0).nonzero().flatten().tolist()
    lengths = [end - start for start, end in zip(starts, [*starts[1:], query.shape[2]], strict=True)]
    # `split` instead of slices, because the backward pass of each slice would fill a tensor of the whole row.
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


class _CrossEntropy(torch.autograd.Function):  # type: ignore[misc]
    """Autograd function for -log p(label) of each row, in fp32. If `inplace` is True, the gradient overwrites the
    logits."""

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, labels: torch.Tensor, inplace: bool) -> torch.Tensor:
        sums = torch.cat([rows.float().logsumexp(-1) for rows in logits.split(ROWS)])
        ctx.save_for_backward(logits, labels, sums)
        ctx.inplace = inplace
        return sums - logits.gather(-1, labels[:, None])[:, 0].float()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        logits, labels, sums = ctx.saved_tensors
        result = logits if ctx.inplace else torch.empty_like(logits)
        rows = zip(*(each.split(ROWS) for each in (logits, result, labels, sums, gradients[0])), strict=True)
        for part, target, ids, total, gradient in rows:
            softmax = (part.float() - total[:, None]).exp_()
            softmax.scatter_add_(-1, ids[:, None], torch.full_like(softmax[:, :1], -1.0))
            target.copy_(softmax.mul_(gradient[:, None]))
        return result, None, None


def cross_entropy_loss(
    logits: torch.Tensor, labels: torch.Tensor, inplace_backward: bool = False
) -> tuple[torch.Tensor, None]:
    """Computes -log p(label) of each token. VERL uses this function in place of flash-attn's function of the same name.

    Args:
        logits: the model's logits, of shape (tokens, vocabulary).
        labels: the label of each token, of shape (tokens,).
        inplace_backward: whether the gradient may overwrite the logits.

    Returns:
        The losses, of shape (tokens,), and None, because VERL does not use the second result.
    """
    return _CrossEntropy.apply(logits, labels, inplace_backward), None


AttentionInterface.register(PACKED_ATTENTION, packed_attention)
if not torch_functional.FLAH_ATTN_CROSS_ENTROPY_LOSS_AVAILABLE:
    torch_functional.cross_entropy_loss = cross_entropy_loss
    torch_functional.FLAH_ATTN_CROSS_ENTROPY_LOSS_AVAILABLE = True
