"""The files that say which servers run here, one a port, for `rstar2 serve status`, `down` and `logs`."""

from __future__ import annotations

from pathlib import Path

from rstar2.errors import Failure, UserError
from rstar2.serve.settings import ServerHandle
from rstar2.supervision.state import StateFile, end_module, runs_module, state_folder

SUPERVISOR = "rstar2.serve.supervisor"
STOP_S = 90.0
"""For all waves of parts, one after the other."""


def server_folder(port: int) -> Path:
    """Where the logs of the server at a port are, in `logs`; those of the one that ran last too."""
    return state_folder() / "serve" / str(port)


def state_file(port: int) -> StateFile[ServerHandle]:
    return _file(state_folder() / "serve" / f"{port}.json")


def runs_at(port: int) -> bool:
    """Whether a server of this machine runs at a port. Raises UserError if its state file cannot be read."""
    handle = state_file(port).read()
    return handle is not None and _runs(handle)


def port_taken(port: int) -> UserError:
    return UserError(
        f"another server of rstar2 is starting or running on port {port}",
        "Give another port with --port; `rstar2 serve status` shows the servers.",
    )


def read_states() -> list[ServerHandle]:
    """The servers that load or run here, and those that gave up; UserError where a file cannot be read."""
    found = (_file(path).read() for path in sorted(state_folder().glob("serve/*.json")))
    return [one for one in found if one is not None and (one.error or _runs(one))]


def one_server(port: int | None) -> ServerHandle:
    """The server at a port, or the only one: of those that run, or where none does, of those that gave up.

    UserError where there is none, or several and no port is given.
    """
    servers = [server for server in read_states() if port in (None, server.port)]
    servers = [server for server in servers if not server.error] or servers
    if not servers:
        raise no_server("" if port is None else f" on port {port}")
    if len(servers) > 1:
        ports = ", ".join(str(server.port) for server in servers)
        which = "servers gave up" if servers[0].error else "servers are running"
        raise UserError(f"{len(servers)} {which} here, on ports {ports}", "Choose one with --port.")
    return servers[0]


def no_server(where: str = "") -> UserError:
    return UserError(f"no server is running here{where}", "Start one with `rstar2 serve MODEL --detach`.")


def end_server(server: ServerHandle) -> None:
    """End a server and everything it started; a Failure where it does not end."""
    if not end_module(server.pid, SUPERVISOR, wait_s=STOP_S):
        raise Failure(f"the server (pid {server.pid}) did not stop", f"See {server.folder}/logs.")
    state_file(server.port).clear(server.pid)


def _runs(server: ServerHandle) -> bool:
    return not server.error and runs_module(server.pid, SUPERVISOR)


def _file(path: Path) -> StateFile[ServerHandle]:
    return StateFile(path, ServerHandle, "Remove it, and stop the server by hand if it is running.")
