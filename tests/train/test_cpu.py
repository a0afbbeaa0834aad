"""What VERL's platform and training engine for a CPU do that torch does not do by itself."""

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


def freed_by(ask: Callable[[], object]) -> int:
    """Bytes by which this process is smaller once `ask` was called, of 350 MiB that were freed but are still held."""
    import torch

    # From the first block that was freed on, glibc keeps blocks of its size.
    torch.ones(16 * MIB // 4)
    tensors = [torch.ones(MIB // 4) for _ in range(400)]
    some = tensors[::50]
    del tensors
    held = in_memory()
    ask()
    freed = held - in_memory()
    assert all(float(each.sum()) == MIB // 4 for each in some)
    return freed


def test_memory_that_was_freed_goes_back_to_the_system_when_verl_asks() -> None:
    from rstar2.train.verl.cpu.platform import CpuPlatform

    assert freed_by(CpuPlatform().empty_cache) > 300 * MIB
    assert freed_by(CpuPlatform.device_module.empty_cache) > 300 * MIB


def test_it_goes_back_before_each_micro_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    from verl.workers.engine.fsdp import FSDPEngineWithLMHead

    from rstar2.train.verl.cpu.engine import CpuTrainingEngine

    seen = []
    monkeypatch.setattr(FSDPEngineWithLMHead, "forward_step", lambda *about, **more: seen.append(in_memory()))
    held = in_memory()
    freed = freed_by(
        lambda: CpuTrainingEngine.forward_step(object.__new__(CpuTrainingEngine), "a micro-batch")
    )
    assert freed > 300 * MIB
    assert seen[0] < held + 100 * MIB
