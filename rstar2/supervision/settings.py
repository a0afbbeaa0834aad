"""The settings that a supervisor reads when it starts, and the events that it reports."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel


class SupervisionSettings(BaseModel, extra="forbid"):
    """The settings that all supervisors share."""

    folder: str
    """The service's folder. The service's logs are in `logs/` of this folder."""
    max_log_bytes: int
    """If a log is longer than this many bytes, its contents are moved to a second file, which is replaced each time."""
    detached: bool = False
    """Whether the supervisor continues after the process that started it has ended."""


class Event(BaseModel):
    """One event, which a supervisor prints as a line of JSON."""

    kind: Literal["progress", "ready", "restart", "failed"]
    text: str = ""
    hint: str = ""
    user_error: bool = False
    handle: dict[str, Any] | None = None
    """For `ready`, the values of the service's `Handle`."""
