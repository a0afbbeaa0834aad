"""What a judge's supervisor is told when it starts, and what it says of the judge."""

from __future__ import annotations

from pydantic import Field

from rstar2.judge.schema import Isolation
from rstar2.judge.server.settings import ServerLimits
from rstar2.supervision.settings import SupervisionSettings
from rstar2.supervision.state import Handle


class ServiceSettings(SupervisionSettings):
    """One judge service on one machine. Work folders and the embedded queue's data go to its folder too."""

    workers: int = 2
    host: str = "127.0.0.1"
    port: int = 0
    """0: any free port."""
    redis_url: str | None = None
    """None: start an embedded server."""
    isolation: Isolation | None = None
    """The tier to run under; None: the best this machine allows, never `none`."""
    token: str | None = None
    """What clients must send as `Authorization: Bearer`; a blank one is refused. None: nothing, but under isolation
    `none` a token is made."""
    preload: bool = True
    """See `WorkerSettings.preload`; False saves each worker some four seconds of a processor."""
    api: bool = True
    """False: only workers, which join the queue at `redis_url`."""
    hosts: list[str] = Field(default_factory=list)
    """Names by which a judge without a token may be called, beside localhost and addresses."""
    limits: ServerLimits = ServerLimits()
    max_log_bytes: int = 16 << 20


class JudgeHandle(Handle):
    """A judge that answers, or the workers of this machine for one elsewhere."""

    url: str
    """Empty where there are only workers."""
    token: str | None
    redis_url: str
    isolation: Isolation
