"""Settings of the judge's HTTP process."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, Field


class ServerLimits(BaseModel, extra="forbid"):
    """Limits that the HTTP process sets for its clients."""

    max_queued: int = 200_000
    """If the queue contains this many programs, the judge refuses new programs with status 429."""
    max_queued_bytes: int = 2 << 30
    """If the queue and its stored results take more than this many bytes, the judge refuses new programs with status
    429."""
    max_body_bytes: int = 1 << 30
    """Maximum total number of bytes of all request bodies that are being received at the same time."""
    read_s: float = 30.0
    """Idle timeout in seconds while the body of a request is received."""
    unread_s: float = 120.0
    """Timeout in seconds for a client that does not read a long answer. Answers that fit into the client's receive
    buffer do not count as unread."""


class ServerSettings(BaseModel):
    """Settings that the supervisor passes to the HTTP process."""

    redis_url: str
    socket_fd: int
    """File descriptor of the listening socket that the supervisor opened."""
    token: Annotated[str, Field(pattern=r"\S")] | None
    """The token that clients must send, or None if clients need no token."""
    hosts: list[str] = []
    """If the judge has no token, clients may use these host names in its URL, besides localhost and IP addresses."""
    limits: ServerLimits = ServerLimits()
