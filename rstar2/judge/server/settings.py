"""What the HTTP process is told when it starts."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, Field


class ServerSettings(BaseModel):
    redis_url: str
    socket_fd: int
    """The listening socket that the supervisor opened."""
    token: Annotated[str, Field(pattern=r"\S")] | None
    max_queued: int
    """Programs in the queue from which on new ones are answered 429."""
    max_queued_bytes: int
    """Bytes of the queue, with the results it keeps, from which on new programs are answered 429."""
