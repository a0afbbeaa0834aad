"""What a worker process is told when it starts."""

from __future__ import annotations

from pydantic import BaseModel

from rstar2.judge.schema import Isolation


class WorkerSettings(BaseModel):
    name: str
    """Unique among all workers of the queue."""
    redis_url: str
    folder: str
    isolation: Isolation | None
    """The tier to run under; None: the best this machine allows, never `none`."""
    preload: bool = True
    """Load numpy, sympy, scipy and pandas while the worker is idle, so that no program waits for it; without this they
    are loaded when a program first imports them."""
