"""What a judge's supervisor is told when it starts, and what it answers."""

from __future__ import annotations

from pydantic import BaseModel

from rstar2.judge.schema import Isolation


class ServiceSettings(BaseModel, extra="forbid"):
    """One judge service on one machine."""

    folder: str
    """Where logs, work folders and the embedded queue's data go."""
    workers: int = 2
    host: str = "127.0.0.1"
    port: int = 0
    """0: any free port."""
    redis_url: str | None = None
    """None: start an embedded server."""
    isolation: Isolation | None = None
    """The tier to run under; None: the best this machine allows, never `none`."""
    token: str | None = None
    """What clients must send as `Authorization: Bearer`; a blank one is refused."""
    api: bool = True
    """False: only workers, which join the queue at `redis_url`."""
    max_queued: int = 200_000
    """Programs in the queue from which on new ones are answered 429."""
    max_queued_bytes: int = 2 << 30
    """Bytes of the queue, with the results it keeps, from which on new programs are answered 429."""
    detached: bool = False
    """True: outlive the process that started the service."""


class JudgeHandle(BaseModel):
    """A judge that answers, or the workers of this machine for one elsewhere."""

    url: str
    """Empty where there are only workers."""
    token: str | None
    redis_url: str
    isolation: Isolation
    pid: int
    """Of the supervisor; ending it ends everything."""
    folder: str


class StartReport(BaseModel):
    """What the supervisor prints once the judge answers, or when it cannot start."""

    judge: JudgeHandle | None = None
    """None: it cannot start, and the other fields say why."""
    error: str = ""
    hint: str = ""
    user_error: bool = False
