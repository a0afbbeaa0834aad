"""Replaces what VERL takes from flash-attn by PyTorch: attention of packed sequences, and the loss of each token.

Loaded into every VERL process if `hardware.attention` is "torch".

VERL packs the sequences of a micro-batch into one row without padding; position ids start again at 0 with each. For
such a row transformers' `sdpa` builds a mask of tokens times tokens, which takes memory, and with which PyTorch cannot
use its flash attention. Here each sequence is attended to by itself, so no mask is needed.

Without flash-attn's loss VERL takes log-probabilities from single tokens in a loop, and keeps the softmax of all of
them in fp32. VERL's own fused head fails where FSDP2 shards the head apart from the model, as for all models whose
input and output embeddings differ.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface
from verl.utils import torch_functional

from rstar2.train.attention import PACKED_ATTENTION

ROWS = 512
"""The loss is computed in fp32 for this many tokens at a time."""


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


class _CrossEntropy(torch.autograd.Function):  # type: ignore[misc]
    """-log p(label) of each row in fp32. The gradient takes the place of the logits if `inplace` says so."""

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
    """Stands in for flash-attn's function of this name, as far as VERL calls it; the second result is never read.

    Args:
        logits: of shape (tokens, vocabulary).
        labels: of shape (tokens,).
        inplace_backward: whether the gradient may overwrite the logits.
    """
    return _CrossEntropy.apply(logits, labels, inplace_backward), None


AttentionInterface.register(PACKED_ATTENTION, packed_attention)
if not torch_functional.FLAH_ATTN_CROSS_ENTROPY_LOSS_AVAILABLE:
    torch_functional.cross_entropy_loss = cross_entropy_loss
    torch_functional.FLAH_ATTN_CROSS_ENTROPY_LOSS_AVAILABLE = True
