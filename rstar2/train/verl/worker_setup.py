"""Sets up every VERL process on GPUs: timeouts, secrets, ports and activity reports.

Every VERL process on GPUs imports this module, before VERL makes process groups.

VERL 0.9.1 does not use its own key `actor_rollout_ref.nccl_timeout`. By default, VERL's process groups have PyTorch's
default timeout in RL, and a timeout of ten hours in SFT. Keys and tokens are read from a file that only the user can
read, because Ray displays the environment variables of its workers.
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
    """Sets the secrets as environment variables. Variables that are already set keep their values.

    On the machine that started training, all secrets are set already.
    """
    for name, value in json.loads(path.read_text(encoding="utf-8")).items():
        os.environ.setdefault(name, value)


if NCCL_TIMEOUT in os.environ:
    _set_timeout(int(os.environ[NCCL_TIMEOUT]))
for join in ("initialize_global_process_group", "initialize_global_process_group_ray"):
    setattr(distributed, join, report_after(getattr(distributed, join)))
if SECRETS_FILE in os.environ:
    _read_secrets(Path(os.environ[SECRETS_FILE]))
