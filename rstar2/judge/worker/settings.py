"""Settings of a worker process."""

from __future__ import annotations

from pydantic import BaseModel

from rstar2.judge.schema import Isolation


class WorkerSettings(BaseModel):
    """Settings that the supervisor passes to a worker process."""

    name: str
    """Name of the worker, unique among all workers of the queue."""
    redis_url: str
    folder: str
    """Folder in which the worker builds its jail and stores the files of its programs."""
    isolation: Isolation | None
    """The isolation tier. If None, the worker uses the strongest tier that this machine supports, but never the tier
    `none`."""
    preload: bool = True
    """Whether to load numpy, sympy, scipy and pandas while the worker is idle, so that no program has to wait for these
    libraries. If False, a library is loaded when a program first needs it."""
