"""The memory and speed of a check's device, as PyTorch reports them."""

from __future__ import annotations

import resource
from typing import Any

from rstar2.doctor.gpu_check.check import NotRun, Settings
from rstar2.machine import GPU_KINDS, gpu_kind, memory_bytes


def torch_device(settings: Settings) -> Any:
    """Returns the `torch.device` to check. Raises NotRun if PyTorch cannot use this machine's GPUs."""
    import torch

    if settings.device == "cuda" and not torch.cuda.is_available():
        raise NotRun("torch cannot use a GPU of this machine", "See the check `environment`.")
    return torch.device(settings.device)


def free_bytes(settings: Settings) -> int:
    """Returns the number of free bytes in the GPU's memory, or in this machine's memory if the device is the CPU."""
    import torch

    return int(torch.cuda.mem_get_info()[0]) if settings.device == "cuda" else memory_bytes()[1]


def total_bytes(settings: Settings) -> int:
    """Returns the number of bytes in the GPU's memory, or in this machine's memory if the device is the CPU."""
    import torch

    return int(torch.cuda.mem_get_info()[1]) if settings.device == "cuda" else memory_bytes()[0]


def synchronize(settings: Settings) -> None:
    """Wait until the device has finished all operations."""
    import torch

    if settings.device == "cuda":
        torch.cuda.synchronize()


def peak_bytes(settings: Settings) -> int:
    """Returns the peak of PyTorch's allocations on the GPU, in bytes. On a CPU, returns the peak memory of this
    process.
    """
    import torch

    if settings.device == "cuda":
        return int(torch.cuda.max_memory_allocated())
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def published_speed() -> float | None:
    """Returns the published bf16 operations per second of this machine's GPU, or None if they are not known."""
    kind = gpu_kind()
    return GPU_KINDS[kind].flop_per_s if kind else None
