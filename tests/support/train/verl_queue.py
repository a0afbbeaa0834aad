"""Starts the queue between VERL's agent loops and its trainer, in a Ray cluster of this process's own."""

from __future__ import annotations

from typing import Any

STARTS = 10
NO_PRESTARTED_WORKERS = {"prestart_worker_first_driver": False}
"""Else Ray starts a process for each processor, a second of work each, most of which are never used."""


def start_queue() -> Any:
    """The module `transfer_queue`, ready to be used; `close` it and shut Ray down when it is no longer needed."""
    import ray
    import transfer_queue as tq
    from omegaconf import OmegaConf

    for left in reversed(range(STARTS)):
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
            # A node gives up on its own agent after 15 seconds, in which a busy machine may not have started it.
            ray.shutdown()
            if not left:
                raise
    tq.init(OmegaConf.create({"backend": {"SimpleStorage": {"num_data_storage_units": 1}}}))
    return tq
