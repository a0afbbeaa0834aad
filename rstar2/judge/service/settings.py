"""Settings of a judge's supervisor (`ServiceSettings`), and the description of a running judge (`JudgeHandle`)."""

from __future__ import annotations

from pydantic import Field

from rstar2.judge.schema import Isolation
from rstar2.judge.server.settings import ServerLimits
from rstar2.supervision.settings import SupervisionSettings
from rstar2.supervision.state import Handle


class ServiceSettings(SupervisionSettings):
    """Settings of one judge service on one machine.

    `folder` also receives the workers' work folders and the data of the embedded queue.
    """

    workers: int = 2
    host: str = "127.0.0.1"
    port: int = 0
    """The HTTP port, or 0 for any free port."""
    redis_url: str | None = None
    """URL of the Redis server for the queue. None: start an embedded server."""
    isolation: Isolation | None = None
    """The isolation tier. None: the strongest tier that this machine supports, but never `none`."""
    token: str | None = None
    """The token that clients must send as `Authorization: Bearer`. A blank token is refused. None: clients need no
    token, except under isolation `none`, where the supervisor generates a token."""
    preload: bool = True
    """See `WorkerSettings.preload`. The value False saves about four CPU seconds per worker."""
    api: bool = True
    """Whether to serve HTTP. False: start only workers, which join the queue at `redis_url`."""
    hosts: list[str] = Field(default_factory=list)
    """Host names, besides localhost and IP addresses, under which clients may call a judge without a token."""
    limits: ServerLimits = ServerLimits()
    max_log_bytes: int = 16 << 20


class JudgeHandle(Handle):
    """A running judge, or the running workers of this machine for a judge on another machine."""

    url: str
    """The judge's URL, or empty if there are only workers."""
    token: str | None
    redis_url: str
    isolation: Isolation
