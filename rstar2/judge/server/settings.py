"""What the HTTP process is told when it starts."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, Field


class ServerLimits(BaseModel, extra="forbid"):
    """How much the HTTP process takes from its clients."""

    max_queued: int = 200_000
    """Programs in the queue from which on new ones are answered 429."""
    max_queued_bytes: int = 2 << 30
    """Bytes of the queue, with the results it keeps, from which on new programs are answered 429."""
    max_body_bytes: int = 1 << 30
    """Of all requests that are being received at the same time."""
    read_s: float = 30.0
    """How long a client may be silent in the middle of a request's body."""
    unread_s: float = 120.0
    """How long a client may read nothing of an answer that is longer than its receive buffer."""


class ServerSettings(BaseModel):
    redis_url: str
    socket_fd: int
    """The listening socket that the supervisor opened."""
    token: Annotated[str, Field(pattern=r"\S")] | None
    hosts: list[str] = []
    """Names by which a judge without a token may be called, beside localhost and addresses."""
    limits: ServerLimits = ServerLimits()
