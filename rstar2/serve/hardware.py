"""Chooses the layout of a model on the GPUs of this machine, or in the machine's memory if it has no GPU.

Only the use of memory is estimated, not the speed. The weights and the KV cache of one conversation of full length must
fit into the memory, in addition to the memory that vLLM needs for a step. vLLM measures the memory itself after it has
loaded the model.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from rstar2.errors import UserError
from rstar2.machine import GIB, GPU, memory_bytes
from rstar2.model_shape import read_attention, weight_bytes
from rstar2.terminal import percent

VALUE_BYTES = 2
"""Number of bytes per element of the KV cache."""
STEP_GIB = 3.0
"""GiB that activations, CUDA graphs and the CUDA context need on each GPU."""
SHARE = 0.92
"""Share of a GPU's memory that vLLM takes if no other program uses the GPU. The share is vLLM's own default."""
SMALLEST_CONTEXT = 4096
"""The smallest context, in tokens, that a layout may be limited to. A reasoning model needs at least this many
tokens.
"""
KV_GIB = 4
"""GiB for the KV cache of a model on the CPU, unless one conversation needs more or the memory is smaller."""
PROCESS_GIB = 2.0
"""GiB that an engine on the CPU needs beside weights and KV cache."""


@dataclass(frozen=True)
class ModelSize:
    """The sizes of a model that determine how much memory it needs."""

    weights_gib: float
    kv_bytes: int
    """Number of bytes that one token needs in the KV cache."""
    context: int
    """The model's context, in tokens."""
    heads: int
    """Number of attention heads. This number must be divisible by the number of GPUs that share a copy of the model."""


@dataclass(frozen=True)
class Layout:
    """The layout of a model on the GPUs of this machine."""

    tp: int = 1
    """Number of GPUs that share one copy of the model."""
    replicas: int = 1
    """Number of copies of the model."""
    max_model_len: int | None = None
    """The context in tokens. If the value is None, vLLM uses the model's own context."""
    gpu_memory: float | None = None
    """Share of each GPU's memory for vLLM. If the value is None, vLLM uses its default share."""
    dtype: str | None = None
    """Type of the weights. If `dtype` is None, the weights have the type in which the model was saved."""
    notes: tuple[str, ...] = ()
    """Sentences for the user about the choice and its reasons."""


def model_size(folder: Path) -> ModelSize | None:
    """Returns the size of a model on this machine, or None if its config.json or weights do not give it."""
    shape, weights = read_attention(folder), weight_bytes(folder)
    if shape is None or shape.context is None or not weights:
        return None
    return ModelSize(weights / GIB, shape.kv_bytes(VALUE_BYTES), shape.context, shape.heads)


def check_float32(folder: Path) -> None:
    """Raise UserError if the free memory is too small for a model in float32, as transformers loads it on the CPU."""
    weights_gib, free_gib = weight_bytes(folder) / GIB, memory_bytes()[1] / GIB
    if 2 * weights_gib + PROCESS_GIB > free_gib:
        raise UserError(
            f"the model has {weights_gib:.1f} GiB of weights, which need about twice that in float32, but only "
            f"{free_gib:.1f} GiB of memory are free",
            "Use a smaller model, or run this one with vLLM on a GPU.",
        )


def choose_cache(
    size: ModelSize, max_model_len: int | None, free_gib: float
) -> tuple[int, int | None, tuple[str, ...]]:
    """Chooses the KV cache and the context of a model on the CPU, from `free_gib` GiB of free memory.

    Returns:
        GiB for the KV cache; the context in tokens, or None for the model's own context; and notes for the user.

    Raises:
        UserError: the memory is too small for the model, or for a conversation of `max_model_len` tokens.
    """
    left = int(free_gib - size.weights_gib - PROCESS_GIB)
    context = max_model_len or size.context
    needed = math.ceil(context * size.kv_bytes / GIB)
    if left < 1 or (max_model_len is not None and needed > left):
        raise UserError(
            f"the model has {size.weights_gib:.1f} GiB of weights, and one conversation of {context} tokens needs "
            f"{context * size.kv_bytes / GIB:.1f} GiB more, but only {free_gib:.1f} GiB of memory are free",
            "Close other programs, give a smaller --max-model-len, or use a smaller model.",
        )
    if needed <= left:
        return max(needed, min(KV_GIB, left)), max_model_len, ()
    room = int(left * GIB / size.kv_bytes) // 1024 * 1024
    return (
        left,
        room,
        (f"the context is limited to {room} tokens, not {size.context}: more does not fit into memory",),
    )


def choose_layout(
    size: ModelSize | None,
    gpus: list[GPU],
    tp: int | None = None,
    replicas: int | None = None,
    max_model_len: int | None = None,
) -> Layout:
    """Chooses the smallest number of GPUs per copy that fits the model, and then the largest number of copies.

    A `tp`, `replicas` or `max_model_len` that is not None is used as it is. Raises UserError if the GPUs are too few or
    too small.
    """
    if not gpus:
        if (tp or 1) > 1 or (replicas or 1) > 1:
            raise UserError("--tp and --replicas need GPUs, but this machine has none", "Leave them out.")
        return Layout(max_model_len=max_model_len)
    if (tp or 1) * (replicas or 1) > len(gpus):
        raise UserError(
            f"--replicas {replicas or 1} x --tp {tp or 1} needs {(replicas or 1) * (tp or 1)} GPUs, but this machine "
            f"has {len(gpus)}",
            "Give a smaller --tp or --replicas.",
        )
    free = min(gpu.free_gib / gpu.total_gib for gpu in gpus)
    share = min(SHARE, int((free - 0.02) * 100) / 100)
    usable = share * min(gpu.total_gib for gpu in gpus) - STEP_GIB
    notes = (
        []
        if share == SHARE
        else [f"other programs use the GPUs: vLLM gets {percent(share, 0)} of their memory"]
    )
    if size is not None:
        tp, max_model_len = _fit(size, len(gpus), usable, tp, max_model_len, notes)
    tp = tp or 1
    replicas = replicas or len(gpus) // tp
    used = f"{replicas} {'copy' if replicas == 1 else 'copies'} x {tp} of {len(gpus)} GPUs ({gpus[0].name})"
    return Layout(
        tp,
        replicas,
        max_model_len,
        None if share == SHARE else share,
        "half" if min(gpu.capability for gpu in gpus) < 8.0 else None,
        (used, *notes),
    )


def _fit(
    size: ModelSize, gpus: int, usable: float, tp: int | None, length: int | None, notes: list[str]
) -> tuple[int, int | None]:
    """Returns a number of GPUs per copy, and a context in tokens, with which the weights and one conversation fit.

    `usable` is the memory, in GiB, that each GPU has for weights and conversation. If `tp` is not None, `tp` is the
    number of GPUs. If `length` is not None, `length` is the context.
    """

    def tokens(shared_by: int) -> int:
        return int((usable * shared_by - size.weights_gib) * GIB / size.kv_bytes)

    context = length or size.context
    counts = [tp] if tp else [n for n in (1, 2, 4, 8, 16) if n <= gpus and size.heads % n == 0]
    chosen = next((n for n in counts if tokens(n) >= context), counts[-1])
    room = tokens(chosen)
    if room >= context:
        return chosen, length
    if length is not None or room < min(SMALLEST_CONTEXT, size.context):
        need = size.weights_gib + context * size.kv_bytes / GIB
        raise UserError(
            f"the model needs about {need:.0f} GiB for its weights and one conversation of {context} tokens, but "
            f"{chosen} GPUs have only {max(0.0, usable) * chosen:.0f} GiB for it",
            "Give a smaller --max-model-len, a larger --tp, or a smaller model; `nvidia-smi` shows which programs use "
            "the GPUs.",
        )
    room -= room % 1024
    notes.append(
        f"the context is limited to {room} tokens, not {size.context}: more does not fit beside the weights"
    )
    return chosen, room
