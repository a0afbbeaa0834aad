"""Loaded into every VERL process on GPUs, before VERL makes process groups: time-outs, secrets, ports, signs of life.

VERL 0.9.1 reads its own `actor_rollout_ref.nccl_timeout` nowhere: its groups have PyTorch's default, and those of SFT
ten hours. Keys and tokens come from a file that only the user may read, since Ray shows its workers' environment.
"""

from __future__ import annotations

import functools
import json
import os
from datetime import timedelta
from pathlib import Path

from torch.distributed import distributed_c10d
from verl.utils import distributed

from rstar2.train.verl import objectives, rendezvous  # noqa: F401  (have their effect when they are imported)
from rstar2.train.verl.activity import report_after
from rstar2.train.verl.output import disk_space, trackers  # noqa: F401  (have their effect when they are imported)

NCCL_TIMEOUT = "RSTAR2_NCCL_TIMEOUT_S"
SECRETS_FILE = "RSTAR2_SECRETS_FILE"


def _set_timeout(seconds: int) -> None:
    distributed_c10d.default_pg_timeout = timedelta(seconds=seconds)
    distributed_c10d.default_pg_nccl_timeout = timedelta(seconds=seconds)
    distributed.initialize_global_process_group = functools.partial(
        distributed.initialize_global_process_group, timeout_second=seconds
    )


def _read_secrets(path: Path) -> None:
    """Add what is not there yet; on the machine that started training it is there already."""
    for name, value in json.loads(path.read_text(encoding="utf-8")).items():
        os.environ.setdefault(name, value)


if NCCL_TIMEOUT in os.environ:
    _set_timeout(int(os.environ[NCCL_TIMEOUT]))
for join in ("initialize_global_process_group", "initialize_global_process_group_ray"):
    setattr(distributed, join, report_after(getattr(distributed, join)))
if SECRETS_FILE in os.environ:
    _read_secrets(Path(os.environ[SECRETS_FILE]))
