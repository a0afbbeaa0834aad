"""Tests of VERL's platform and training engine for a CPU: the parts that torch does not have."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from support.optional import needs

pytestmark = needs("verl")

MIB = 1 << 20


@pytest.fixture(autouse=True)
def _worth_freeing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Divides `WORTH_FREEING` by four, so that a test can exceed it."""
    from rstar2.train.verl.cpu import platform

    monkeypatch.setattr(platform, "WORTH_FREEING", platform.WORTH_FREEING // 4)


def in_memory() -> int:
    """Returns the resident memory of this process in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def bytes_freed_by(ask: Callable[[], object]) -> int:
    """Frees 112 MiB in this process, and then calls `ask`. Returns the bytes of memory that the call returns to the
    system."""
    import torch

    # After the first freed block, glibc keeps blocks of its size.
    torch.ones(16 * MIB // 4)
    tensors = [torch.ones(MIB // 4) for _ in range(128)]
    some = tensors[::8]
    del tensors
    before = in_memory()
    ask()
    difference = before - in_memory()
    assert all(float(each.sum()) == MIB // 4 for each in some)
    return difference


def test_memory_that_was_freed_goes_back_to_the_system_when_verl_asks() -> None:
    from rstar2.train.verl.cpu.platform import CpuPlatform

    assert bytes_freed_by(CpuPlatform().empty_cache) > 96 * MIB
    assert bytes_freed_by(CpuPlatform.device_module.empty_cache) > 96 * MIB


def test_what_is_not_worth_it_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    from rstar2.train.verl.cpu import platform

    monkeypatch.setattr(platform, "WORTH_FREEING", 1 << 60)
    assert bytes_freed_by(platform.free_unused) < 32 * MIB


def test_it_goes_back_before_each_micro_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    from verl.workers.engine.fsdp import FSDPEngineWithLMHead

    from rstar2.train.verl.cpu.engine import CpuTrainingEngine

    memory_per_step = []
    monkeypatch.setattr(
        FSDPEngineWithLMHead, "forward_step", lambda *args, **more: memory_per_step.append(in_memory())
    )
    before = in_memory()
    freed_bytes = bytes_freed_by(
        lambda: CpuTrainingEngine.forward_step(object.__new__(CpuTrainingEngine), "a micro-batch")
    )
    assert freed_bytes > 96 * MIB
    assert memory_per_step[0] < before + 64 * MIB


def test_micro_batches_hold_rows_of_like_lengths_and_their_padding_within_the_limit() -> None:
    from rstar2.train.verl.cpu.like_lengths import MOST_PADDING, rows_of_like_lengths

    generator = random.Random(1)
    for limit in (200, 1000, 100_000):
        lengths = [2] * 40 + [generator.randint(20, 200) for _ in range(200)]
        generator.shuffle(lengths)
        groups = rows_of_like_lengths(lengths, limit)
        assert sorted(row for group in groups for row in group) == list(range(240))
        for group in groups:
            filled = len(group) * max(lengths[row] for row in group)
            assert filled <= limit
            assert sum(lengths[row] for row in group) >= (1 - MOST_PADDING) * filled
    assert rows_of_like_lengths([7] * 10, 28) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert rows_of_like_lengths([50], 20) == [[0]]
    # Empty rollouts have their own micro-batch, even if another one has room.
    assert rows_of_like_lengths([2, 60, 2, 50], 1000) == [[1, 3], [0, 2]]


def test_a_rank_makes_as_many_micro_batches_as_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch
    from verl.utils import tensordict_utils as tu

    from rstar2.train.verl.cpu.engine import padded_micro_batches

    lengths = [30, 2, 28, 2, 5]
    rows = [torch.arange(length) + 100 * i for i, length in enumerate(lengths)]
    ids = torch.nested.as_nested_tensor(rows, layout=torch.jagged)
    data = tu.get_tensordict({"input_ids": ids}, {"max_token_len_per_gpu": 1000})
    sampled_ids = []

    def all_reduce(count: torch.Tensor, op: object, group: object) -> None:
        sampled_ids.append((int(count), op, group))
        count.fill_(4)

    monkeypatch.setattr(torch.distributed, "all_reduce", all_reduce)
    alone, places = padded_micro_batches(data)
    assert (len(alone), places, sampled_ids) == (3, [[0, 2], [4], [1, 3]], [])
    shared, places = padded_micro_batches(data, dp_group="ranks", same_micro_num_in_dp=True)
    assert (len(shared), places) == (4, [[0], [2], [4], [1, 3]])
    assert sampled_ids == [(3, torch.distributed.ReduceOp.MAX, "ranks")]
    for micro_batch, place in zip(shared, places, strict=True):
        assert [row[0] // 100 for row in micro_batch["input_ids"].unbind()] == place


def test_ranks_with_fewer_micro_batches_divide_their_largest() -> None:
    from rstar2.train.verl.cpu.engine import divided

    assert divided([[3], [1, 0, 2], [4, 5]], 3) == [[3], [1, 0, 2], [4, 5]]
    assert divided([[3], [1, 0, 2], [4, 5]], 5) == [[3], [1], [0], [2], [4, 5]]
