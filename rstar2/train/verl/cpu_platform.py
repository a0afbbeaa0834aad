"""A CPU as a VERL platform, through VERL's public registry."""

from __future__ import annotations

import contextlib
import types
from collections.abc import Iterator
from typing import Any

import torch
from verl.plugin.platform import PlatformBase, PlatformRegistry

NAME = "cpu"
CPU_ROLLOUT = "rstar2_cpu"
"""The rollout backend's name in VERL's config."""


def _nothing(*args: Any, **kwargs: Any) -> None:
    return None


def _zero(*args: Any, **kwargs: Any) -> int:
    return 0


def _device_module() -> types.ModuleType:
    """What VERL asks of `torch.cuda`, answered for a CPU."""
    module = types.ModuleType("rstar2_torch_cpu")
    for name in (
        "empty_cache",
        "synchronize",
        "set_device",
        "manual_seed",
        "manual_seed_all",
        "ipc_collect",
        "reset_peak_memory_stats",
    ):
        setattr(module, name, _nothing)
    for name in ("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved"):
        setattr(module, name, _zero)
    answers: dict[str, Any] = {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: NAME,
        "get_rng_state": torch.get_rng_state,
        "set_rng_state": lambda state, *_: torch.set_rng_state(state),
        "mem_get_info": lambda *_: (0, 1),
        "get_device_name": lambda *_: NAME,
        "current_stream": lambda *_: torch.cpu.current_stream(),
        "Stream": torch.cpu.Stream,
        "stream": torch.cpu.stream,
    }
    for name, answer in answers.items():
        setattr(module, name, answer)
    return module


@PlatformRegistry.register(platform=NAME)
class CpuPlatform(PlatformBase):  # type: ignore[misc]
    """One logical device per rank; Ray sees the logical GPUs that `ray_init.num_gpus` declares."""

    device_name = NAME
    vendor_name = NAME
    device_module = _device_module()

    def is_available(self) -> bool:
        return True

    def is_platform_available(self, use_smi_check: bool = False) -> bool:
        return False  # never chosen by detection, only by VERL_PLATFORM

    def current_device(self) -> str:
        return NAME

    def device_count(self) -> int:
        return 1

    def set_device(self, device_index: int) -> None:
        return None

    def synchronize(self, device_index: int | None = None) -> None:
        return None

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        torch.manual_seed(seed)

    def set_allocator_settings(self, settings: str) -> None:
        return None

    def empty_cache(self) -> None:
        return None

    def get_device_capability(self, device_index: int = 0) -> tuple[None, None]:
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "CUDA_VISIBLE_DEVICES"

    @contextlib.contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        yield

    def profiler_start(self) -> None:
        return None

    def profiler_stop(self) -> None:
        return None

    def ray_resource_name(self) -> str:
        return "GPU"

    def ray_noset_envvars(self) -> list[str]:
        return []

    def is_ipc_supported(self) -> bool:
        return False

    def cudart(self) -> None:
        return None
