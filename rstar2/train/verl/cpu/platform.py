"""The CPU as a platform of VERL, registered through VERL's public registry."""

from __future__ import annotations

import contextlib
import ctypes
import resource
import types
from typing import Any

import torch
from verl.plugin.platform import PlatformBase, PlatformRegistry

NAME = "cpu"
CPU_ROLLOUT = "rstar2_cpu"
"""The name of our rollout backend for CPUs in VERL's config."""
WORTH_FREEING = 256 << 20
"""Memory is returned to the operating system only if at least this many bytes are free."""
_FROM_TORCH_CPU = ("is_available", "device_count", "current_device", "set_device", "synchronize")
_STREAMS = ("Stream", "stream", "current_stream")
_NOTHING = ("manual_seed", "manual_seed_all", "ipc_collect", "reset_peak_memory_stats")
_ZERO = ("memory_allocated", "memory_reserved", "max_memory_reserved")


def _nothing(*args: Any, **kwargs: Any) -> None:
    return None


class _Mallinfo(ctypes.Structure):
    """glibc's `struct mallinfo2`, which consists of ten numbers. The ninth number, `fordblks`, is the number of bytes
    in free blocks."""

    _fields_ = [
        *((f"size{i}", ctypes.c_size_t) for i in range(8)),
        ("free", ctypes.c_size_t),
        ("top", ctypes.c_size_t),
    ]


def free_unused(*args: Any, **kwargs: Any) -> None:
    """Returns freed memory to the operating system. If the C library is not glibc, nothing happens.

    By itself, glibc does not return freed blocks of up to 32 MiB, such as a layer's activations. VERL calls this
    function after each update. Without this function, the process would still hold the memory of an update while the
    next step computes its log-probabilities. If less than `WORTH_FREEING` is free, nothing is returned, because a small
    model would spend a tenth of its time on allocating the memory again.
    """
    library = ctypes.CDLL(None)
    if not hasattr(library, "malloc_trim"):
        return
    if hasattr(library, "mallinfo2"):  # glibc 2.33 and later
        library.mallinfo2.restype = _Mallinfo
        if library.mallinfo2().free < WORTH_FREEING:
            return
    library.malloc_trim(0)


def peak_memory(*args: Any, **kwargs: Any) -> int:
    """Returns the peak memory of this process in bytes. VERL logs this peak as `perf/max_memory_allocated_gb`."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _device_module() -> types.ModuleType:
    """Returns a module that replaces `torch.cuda` in VERL."""
    module = types.ModuleType("rstar2_torch_cpu")
    answers: dict[str, Any] = {
        **{name: getattr(torch.cpu, name) for name in (*_FROM_TORCH_CPU, *_STREAMS)},
        **dict.fromkeys(_NOTHING, _nothing),
        **dict.fromkeys(_ZERO, lambda *_: 0),
        "empty_cache": free_unused,
        "max_memory_allocated": peak_memory,
        "get_rng_state": torch.get_rng_state,
        "set_rng_state": lambda state, *_: torch.set_rng_state(state),
        "mem_get_info": lambda *_: (0, 1),
        "get_device_name": lambda *_: NAME,
    }
    vars(module).update(answers)
    return module


@PlatformRegistry.register(platform=NAME)
class CpuPlatform(PlatformBase):  # type: ignore[misc]
    """VERL's platform for a CPU, with one logical device per rank.

    `ray_init.num_gpus` sets how many logical GPUs Ray sees.
    """

    device_name = NAME
    vendor_name = NAME
    device_module = _device_module()
    is_available = staticmethod(torch.cpu.is_available)
    device_count = staticmethod(torch.cpu.device_count)
    current_device = staticmethod(torch.cpu.current_device)
    manual_seed = manual_seed_all = staticmethod(torch.manual_seed)
    set_device = synchronize = set_allocator_settings = _nothing
    empty_cache = staticmethod(free_unused)
    profiler_start = profiler_stop = cudart = _nothing
    nvtx_range = staticmethod(contextlib.nullcontext)

    def is_platform_available(self, use_smi_check: bool = False) -> bool:
        return False  # VERL does not detect this platform; only VERL_PLATFORM selects it

    def get_device_capability(self, device_index: int = 0) -> tuple[None, None]:
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "CUDA_VISIBLE_DEVICES"

    def ray_resource_name(self) -> str:
        return "GPU"

    def ray_noset_envvars(self) -> list[str]:
        return []

    def is_ipc_supported(self) -> bool:
        return False
