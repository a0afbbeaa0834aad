"""What VERL's CPU platform does that torch does not do by itself."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from support.optional import needs

pytestmark = needs("verl")

MIB = 1 << 20


def in_memory() -> int:
    """Bytes of this process that are in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("asked", ["platform", "device module"])
def test_memory_that_was_freed_goes_back_to_the_system_when_verl_asks(asked: str) -> None:
    import torch

    from rstar2.train.verl.cpu_platform import CpuPlatform

    empty_cache: Callable[[], None] = {
        "platform": CpuPlatform().empty_cache,
        "device module": CpuPlatform.device_module.empty_cache,
    }[asked]
    # From the first block that was freed on, glibc keeps blocks of its size.
    torch.ones(16 * MIB // 4)
    tensors = [torch.ones(MIB // 4) for _ in range(400)]
    some = tensors[::50]
    del tensors
    held = in_memory()
    empty_cache()
    assert held - in_memory() > 300 * MIB
    assert all(float(each.sum()) == MIB // 4 for each in some)
