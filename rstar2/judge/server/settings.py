"""Settings of the judge's HTTP process."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, Field


class ServerLimits(BaseModel, extra="forbid"):
    """Limits of the HTTP process for what its clients may send."""

    max_queued: int = 200_000
    """If the queue has this many programs, new programs are answered with status 429."""
    max_queued_bytes: int = 2 << 30
    """If the queue and its stored results take more bytes, new programs are answered with status 429."""
    max_body_bytes: int = 1 << 30
    """Maximum size of all request bodies that are being received at the same time."""
    read_s: float = 30.0
    """How long a client may be silent in the middle of a request's body (seconds)."""
    unread_s: float = 120.0
    """How long a client may leave a long answer unread (seconds). Answers that fit its receive buffer do not count."""


class ServerSettings(BaseModel):
    """Settings that the supervisor passes to the HTTP process."""

    redis_url: str
    socket_fd: int
    """The listening socket that the supervisor opened."""
    token: Annotated[str, Field(pattern=r"\S")] | None
    """The token that clients must send. None: clients need no token."""
    hosts: list[str] = []
    """Host names, besides localhost and IP addresses, under which clients may call a judge without a token."""
    limits: ServerLimits = ServerLimits()
