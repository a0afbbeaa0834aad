"""Sizes of random Qwen3 models, from tiny to 4B, and the largest one that fits a GPU.

The sizes from 0.6B on have the shapes of the published models.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rstar2.model_shape import ModelShape, shape_of
from rstar2.train.estimate.memory import ASLEEP, Memory, trainer_memory

VOCABULARY = 151_936
"""Number of tokens in Qwen3's vocabulary."""
LOGIT_SPREAD = 3.0
"""Standard deviation of a random model's logits, in nats. With this value, the model prefers some tokens, as a trained
model does. With the usual random weights, all tokens are nearly equally likely, and an error in the logits would not be
detected.
"""


@dataclass(frozen=True)
class Size:
    """The size of a random Qwen3. The output layer uses the weights of the embedding."""

    name: str
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int = VOCABULARY

    @property
    def config(self) -> dict[str, Any]:
        """The values in the model's config.json that decide the model's size."""
        return {
            "model_type": "qwen3",
            "vocab_size": self.vocab,
            "hidden_size": self.hidden,
            "intermediate_size": self.intermediate,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "tie_word_embeddings": True,
        }

    @property
    def shape(self) -> ModelShape:
        return shape_of(self.config, self.name)

    @property
    def spread(self) -> float:
        """Standard deviation of the random weights."""
        return float(LOGIT_SPREAD / self.hidden**0.5)


TINY = Size("tiny", 128, 256, 3, 4, 2, 32, 800)
"""The size for a CPU. The demo's model has the same size."""
SIZES = (
    Size("0.1B", 512, 1536, 8, 8, 4, 64),
    Size("0.6B", 1024, 3072, 28, 16, 8, 128),
    Size("1.7B", 2048, 6144, 28, 16, 8, 128),
    Size("4B", 2560, 9728, 36, 32, 8, 128),
)
"""The sizes for GPUs, the smallest first."""


@dataclass(frozen=True)
class OneDevice:
    """One GPU, or the CPU as one rank, with the fields of `rstar2.train.estimate.memory.Devices`."""

    device: str
    nodes: int = 1
    gpus_per_node: int = 1
    gpu: str = "h100"
    """This field has no effect, because the plan uses it only for speed and capacity, which the check measures."""
    gradient_checkpointing: bool = True


def planned_update(size: Size, device: str, tokens: int, logits: int) -> Memory:
    """Returns the memory of one update on one device according to `rstar2 plan`."""
    return trainer_memory(size.shape, OneDevice(device), tokens, logits, 0, sends_weights=False)


def planned_tensors(size: Size, device: str, tokens: int, logits: int) -> int:
    """Returns the bytes of `planned_update` that PyTorch allocates. The bytes that CUDA itself and a sleeping engine
    take are left out.
    """
    total = planned_update(size, device, tokens, logits).update_total
    return total - (ASLEEP if device == "cuda" else 0)


def largest(sizes: Sequence[Size], tokens: int, logits: int, free: int) -> Size | None:
    """Returns the largest size whose update fits into `free` bytes of a GPU, or None if none fits."""
    fitting = [size for size in sizes if planned_tensors(size, "cuda", tokens, logits) <= free]
    return fitting[-1] if fitting else None
