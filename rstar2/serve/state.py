"""The files that say which servers run here, one a port, for `rstar2 serve status`, `down` and `logs`."""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from rstar2.errors import UserError
from rstar2.judge.service.state_file import runs_module, state_folder, write_private
from rstar2.serve.settings import ServerHandle

SUPERVISOR = "rstar2.serve.supervisor"


def server_folder(port: int) -> Path:
    """Where the logs of the server at a port are, in `logs`; those of the one that ran last too."""
    return state_folder() / "serve" / str(port)


def write_state(server: ServerHandle) -> None:
    write_private(_file(server.port), server.model_dump_json(indent=2))


def clear_state(server: ServerHandle) -> None:
    """Remove the file of this server; one that came after it keeps its own."""
    state = _read(_file(server.port))
    if state is not None and state.pid == server.pid:
        _file(server.port).unlink(missing_ok=True)


def read_states() -> list[ServerHandle]:
    """The servers that run here, and those that gave up; UserError where a file cannot be read."""
    found = (_read(path) for path in sorted(state_folder().glob("serve/*.json")))
    return [server for server in found if server is not None and (server.error or is_running(server))]


def is_running(server: ServerHandle) -> bool:
    return runs_module(server.pid, SUPERVISOR)


def one_server(port: int | None) -> ServerHandle:
    """The server at a port, or the only one; UserError where there is none, or several and no port is given."""
    servers = [server for server in read_states() if port in (None, server.port)]
    if not servers:
        where = "" if port is None else f" on port {port}"
        raise UserError(f"no server is running here{where}", "Start one with `rstar2 serve MODEL --detach`.")
    if len(servers) > 1:
        ports = ", ".join(str(server.port) for server in servers)
        raise UserError(
            f"{len(servers)} servers are running here, on ports {ports}", "Choose one with --port."
        )
    return servers[0]


def _file(port: int) -> Path:
    return state_folder() / "serve" / f"{port}.json"


def _read(path: Path) -> ServerHandle | None:
    try:
        return ServerHandle.model_validate_json(path.read_text())
    except FileNotFoundError:
        return None
    except (ValidationError, OSError) as error:
        raise UserError(
            f"cannot read {path}: {error}", "Remove it, and stop the server by hand if it is running."
        ) from error
