"""Starts the queue between VERL's agent loops and its trainer, in a private Ray cluster of this process."""

from __future__ import annotations

from typing import Any

STARTS = 10
NO_PRESTARTED_WORKERS = {"prestart_worker_first_driver": False}
"""Without this setting, Ray starts one process per CPU. Each start takes a second, and most processes are never
used."""


def start_queue() -> Any:
    """Return the module `transfer_queue`, ready to use. Call its `close` and shut Ray down afterwards."""
    import ray
    import transfer_queue as tq
    from omegaconf import OmegaConf

    for retries_left in reversed(range(STARTS)):
        try:
            ray.init(
                num_cpus=4,
                include_dashboard=False,
                object_store_memory=100_000_000,
                logging_level="ERROR",
                _system_config=NO_PRESTARTED_WORKERS,
            )
            break
        except Exception:
            # A node gives up its agent after 15 seconds, which can be too short on a busy machine.
            ray.shutdown()
            if not retries_left:
                raise
    tq.init(OmegaConf.create({"backend": {"SimpleStorage": {"num_data_storage_units": 1}}}))
    return tq
