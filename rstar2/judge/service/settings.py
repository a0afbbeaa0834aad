"""Settings of a judge's supervisor (`ServiceSettings`), and a description of a running judge (`JudgeHandle`)."""

from __future__ import annotations

from pydantic import Field

from rstar2.judge.schema import Isolation
from rstar2.judge.server.settings import ServerLimits
from rstar2.supervision.settings import SupervisionSettings
from rstar2.supervision.state import Handle


class ServiceSettings(SupervisionSettings):
    """Settings of one judge service on one machine.

    The field `folder` names the folder for logs, for the workers' folders and for the data of the embedded queue.
    """

    workers: int = 2
    host: str = "127.0.0.1"
    port: int = 0
    """The HTTP port, or 0 for any free port."""
    redis_url: str | None = None
    """URL of the Redis server that holds the queue. If None, the supervisor starts an embedded server."""
    isolation: Isolation | None = None
    """The isolation tier. If None, the judge uses the strongest tier that this machine supports, but never the tier
    `none`."""
    token: str | None = None
    """The token that clients must send as `Authorization: Bearer`. A blank token is refused. If None, clients need no
    token, except under isolation `none`, for which the supervisor generates a token."""
    preload: bool = True
    """Whether workers load libraries while they are idle; see `WorkerSettings.preload`. The value False saves about
    four CPU seconds for each worker."""
    api: bool = True
    """Whether to start the HTTP process. If False, the supervisor starts only workers, which join the queue at
    `redis_url`."""
    hosts: list[str] = Field(default_factory=list)
    """If the judge has no token, clients may use these host names in its URL, besides localhost and IP addresses."""
    limits: ServerLimits = ServerLimits()
    max_log_bytes: int = 16 << 20


class JudgeHandle(Handle):
    """Describes a running judge, or running workers on this machine for a judge on another machine."""

    url: str
    """The judge's URL, or empty if only workers run on this machine."""
    token: str | None
    redis_url: str
    isolation: Isolation
