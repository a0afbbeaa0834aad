"""What a supervisor is told when it starts, and what it reports."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel


class SupervisionSettings(BaseModel, extra="forbid"):
    """What every supervisor needs to know."""

    folder: str
    """The service's. Logs go to `logs/` in it."""
    max_log_bytes: int
    """Size at which a log is moved to a second file, replacing the one that was moved before."""
    detached: bool = False
    """True: outlive the process that started it."""


class Event(BaseModel):
    """One line that a supervisor prints."""

    kind: Literal["progress", "ready", "restart", "failed"]
    text: str = ""
    hint: str = ""
    user_error: bool = False
    handle: dict[str, Any] | None = None
    """For `ready`, the values of the service's `Handle`."""
