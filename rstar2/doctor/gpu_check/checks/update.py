"""Runs updates of a random Qwen3 with FSDP2 and AdamW, and measures their memory and tokens per second.

The update does the same as an update of VERL, but needs only torch and transformers: fp32 weights, moments and
gradients, computation in bf16, layers wrapped one by one, gradient checkpointing, rows without padding.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

from rstar2.doctor.gpu_check.check import Check, CheckFailed, Measurements, NotRun, Settings
from rstar2.doctor.gpu_check.sizes import SIZES, TINY, Size, largest, planned_tensors
from rstar2.doctor.gpu_check.tools.device import (
    free_bytes,
    peak_bytes,
    published_speed,
    synchronize,
    torch_device,
)
from rstar2.machine import GIB
from rstar2.train.estimate.work import Assumptions

ROW = 1024
"""Number of tokens in a row of the batch."""
TOKENS = (16_384, 4096)
"""Number of tokens in an update on a GPU: the number in the shipped profiles, and a lower number for small GPUs."""
CPU_TOKENS = 4096
SHARE = 0.75
"""Share of the free memory that an update may take according to the plan."""
WARM, TIMED = 2, 3
"""The number of updates that are run first and not timed, and the number of timed updates."""
IN_PLACE, COPIES = 1, 3
"""Number of copies of the logits in memory: with flash-attn's loss function, and with PyTorch's loss function."""
FAR = 0.25
"""If the measured memory differs from the plan by more than this share, the user is asked to report it."""


def run(settings: Settings, measurements: Measurements) -> None:
    device = torch_device(settings)
    in_place = settings.device == "cuda" and find_spec("flash_attn") is not None
    logits = IN_PLACE if in_place else COPIES
    size, tokens = _fitting(settings, logits)
    measurements.add("model", f"random Qwen3, {size.name}")
    measurements.add("parameters", size.shape.parameters)
    measurements.add("tokens of an update", tokens)
    measurements.add("loss", "flash-attn, in place" if in_place else "PyTorch")
    with _process_group(settings):
        seconds, losses = _updates(settings, size, tokens, device, in_place)
    measurements.add("loss of the first update", losses[0], "nats")
    measurements.add("loss of the last update", losses[-1], "nats")
    peak, planned = (
        peak_bytes(settings),
        planned_tensors(size, settings.device, tokens, _planned_logits(settings, logits)),
    )
    measurements.add("peak memory", peak / GIB, "GiB", planned / GIB)
    rate = tokens / seconds
    measurements.add("speed of an update", rate, "tokens/s")
    # Forward, backward, and the forward pass that checkpointing repeats: 2 + 4 + 2 operations per parameter.
    per_s = 8 * size.shape.parameters * rate
    measurements.add("computing", per_s / 1e12, "TFLOP/s")
    if published := published_speed():
        share = Assumptions().compute_share
        measurements.add(
            "computing, as a share of the GPU's published speed", per_s / published, planned=share
        )
    if not all(map(math.isfinite, losses)):
        raise CheckFailed(
            f"the loss is not a number: {losses}",
            "Look at the check `attention`, and at the versions.",
        )
    if not losses[-1] < losses[0]:
        raise CheckFailed(
            f"{len(losses)} updates on the same tokens did not lower the loss: {losses}",
            "Look at the check `attention`, and at the versions.",
        )
    ratio = peak / planned
    if abs(ratio - 1) > FAR:
        measurements.notes.append(
            f"The measured memory is {ratio:.2f} times the plan's estimate. Please report it."
        )
    measurements.notes.append(
        "The plan's estimate here has only PyTorch's allocations. `rstar2 plan` adds CUDA and a sleeping engine."
        if settings.device == "cuda"
        else "On a CPU, memory is that of the whole process."
    )
    memory = f"peak {peak / GIB:.1f} GiB, {ratio:.2f} times the plan"
    measurements.summary = f"{size.name}, {tokens:,} tokens: {memory}; {rate:,.0f} tokens/s"


def _planned_logits(settings: Settings, logits: int) -> int:
    from rstar2.train.estimate.memory import CPU_LOGITS

    return logits if settings.device == "cuda" else CPU_LOGITS


def _fitting(settings: Settings, logits: int) -> tuple[Size, int]:
    """Returns the model's size and the number of tokens of an update that fits this device. Raises NotRun if no size
    fits.
    """
    if settings.device == "cpu":
        return TINY, CPU_TOKENS
    free = int(SHARE * free_bytes(settings))
    for tokens in TOKENS:
        if size := largest(SIZES, tokens, logits, free):
            return size, tokens
    raise NotRun(
        f"the GPU has {free_bytes(settings) / GIB:.1f} GiB free, too few for the smallest model",
        "End other programs on it.",
    )


@contextmanager
def _process_group(settings: Settings) -> Iterator[None]:
    """A process group with a single rank. FSDP2 needs a process group."""
    import torch.distributed as dist

    backend = "nccl" if settings.device == "cuda" else "gloo"
    dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


def _updates(
    settings: Settings, size: Size, tokens: int, device: Any, in_place: bool
) -> tuple[float, list[float]]:
    """Returns the median duration of the timed updates in seconds, and the loss of every update."""
    import torch

    model = _sharded(settings, size, device, in_place)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    ids = torch.randint(0, size.vocab, (tokens // ROW, ROW), device=device)
    losses, times = [], []
    for _ in range(WARM + TIMED):
        synchronize(settings)
        begun_at = time.monotonic()
        loss = _loss(model(ids).logits, ids, in_place)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(float(loss.detach()))
        synchronize(settings)
        times.append(time.monotonic() - begun_at)
    return sorted(times[WARM:])[TIMED // 2], losses


def _sharded(settings: Settings, size: Size, device: Any, in_place: bool) -> Any:
    """The model, wrapped for FSDP2 in the same way as VERL wraps it."""
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(1)
    config = Qwen3Config(
        **size.config, initializer_range=size.spread, max_position_embeddings=ROW, use_cache=False
    )
    config._attn_implementation = "flash_attention_2" if in_place else "sdpa"
    with torch.device(device):
        model = Qwen3ForCausalLM(config).float()
    model.gradient_checkpointing_enable({"use_reentrant": False})
    model.train()
    dtype = torch.bfloat16 if settings.device == "cuda" else torch.float32
    policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
    mesh = init_device_mesh(settings.device, (1,))
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    return model


def _loss(logits: Any, ids: Any, in_place: bool) -> Any:
    """The mean cross entropy of logits (B, T, V). `ids` (B, T) are the tokens from which the logits were computed.

    As in VERL, the loss of a row's last position is masked afterwards. Cutting the last position off before the loss is
    computed would copy the logits.
    """
    import torch

    labels, mask = ids.roll(-1, 1).flatten(), torch.ones_like(ids)
    mask[:, -1] = 0
    if in_place:
        from flash_attn.ops.triton.cross_entropy import cross_entropy_loss

        losses = cross_entropy_loss(logits.flatten(0, 1), labels, inplace_backward=True)[0]
    else:
        losses = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels, reduction="none")
    return (losses.float() * mask.flatten()).sum() / mask.sum()


CHECK = Check("update", "Memory and speed of one update", run, limit_s=600.0)
