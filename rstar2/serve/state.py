"""The files that record which servers run on this machine, one per port, for `rstar2 serve status`, `down`, `logs`."""

from __future__ import annotations

from pathlib import Path

from rstar2.errors import Failure, UserError
from rstar2.serve.settings import ServerHandle
from rstar2.supervision.state import StateFile, end_module, runs_module, state_folder

SUPERVISOR = "rstar2.serve.supervisor"
STOP_S = 90.0
"""Timeout in seconds for a supervisor to stop all its processes, wave by wave."""


def server_folder(port: int) -> Path:
    """Returns the folder of the server that runs at a port, or of the last server that ran at this port.

    The server's logs are in `logs`.
    """
    return state_folder() / "serve" / str(port)


def state_file(port: int) -> StateFile[ServerHandle]:
    return _file(state_folder() / "serve" / f"{port}.json")


def runs_at(port: int) -> bool:
    """Whether a server of this machine runs at a port. Raises UserError if the server's state file cannot be read."""
    handle = state_file(port).read()
    return handle is not None and _runs(handle)


def port_in_use_error(port: int) -> UserError:
    return UserError(
        f"another server of rstar2 is starting or running on port {port}",
        "Give another port with --port; `rstar2 serve status` shows the servers.",
    )


def read_states() -> list[ServerHandle]:
    """Returns the servers of this machine that are loading, are running or have given up.

    Raises UserError if a state file cannot be read.
    """
    handles = (_file(path).read() for path in sorted(state_folder().glob("serve/*.json")))
    return [handle for handle in handles if handle is not None and (handle.error or _runs(handle))]


def one_server(port: int | None) -> ServerHandle:
    """Returns the server at a port, or the only server if `port` is None.

    A server that gave up is returned only if no server runs. Raises UserError if there is no server to return, or if
    `port` is None and there are several servers.
    """
    servers = [server for server in read_states() if port in (None, server.port)]
    servers = [server for server in servers if not server.error] or servers
    if not servers:
        raise no_server("" if port is None else f" on port {port}")
    if len(servers) > 1:
        ports = ", ".join(str(server.port) for server in servers)
        state = "servers gave up" if servers[0].error else "servers are running"
        raise UserError(
            f"{len(servers)} {state} on this machine, on ports {ports}", "Choose one with --port."
        )
    return servers[0]


def no_server(where: str = "") -> UserError:
    return UserError(
        f"no server is running on this machine{where}", "Start one with `rstar2 serve MODEL --detach`."
    )


def end_server(server: ServerHandle) -> None:
    """End a server and all its processes. Raises Failure if the server does not end within `STOP_S` seconds."""
    if not end_module(server.pid, SUPERVISOR, wait_s=STOP_S):
        raise Failure(f"the server (pid {server.pid}) did not stop", f"See the logs in {server.folder}/logs.")
    state_file(server.port).clear(server.pid)


def _runs(server: ServerHandle) -> bool:
    return not server.error and runs_module(server.pid, SUPERVISOR)


def _file(path: Path) -> StateFile[ServerHandle]:
    return StateFile(path, ServerHandle, "Remove it, and stop the server by hand if it is running.")
