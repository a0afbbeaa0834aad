"""The supervisor process of a service.

The process starts the parts, reports when they answer, and restarts parts that end.
"""

from __future__ import annotations

import fcntl
import logging
import os
import select
import signal
import sys
from abc import ABC, abstractmethod
from pathlib import Path
from subprocess import SubprocessError
from typing import IO

from rstar2.errors import Failure, RStarError, UserError
from rstar2.files import os_failure
from rstar2.processes import stop_groups
from rstar2.supervision.logs import Rotation
from rstar2.supervision.part import Part
from rstar2.supervision.settings import Event, SupervisionSettings

CHECK_EVERY_S = 0.1
log = logging.getLogger(__name__)


class Supervisor(ABC):
    """Runs the parts of one service until it has to stop.

    After SIGTERM, the supervisor stops all processes that it started, and ends. A supervisor that is not detached also
    stops when its standard input closes, because a closed input means that the process that started the supervisor has
    ended.

    Args:
        silent: whether no process reads the events after `ready`.
    """

    def __init__(self, settings: SupervisionSettings, *, silent: bool) -> None:
        self.folder = Path(settings.folder)
        self.logs = self.folder / "logs"
        self.waves: list[list[Part]] = []
        """Groups of parts, in the order of their start. Later groups use earlier groups, so later groups are stopped
        first.
        """
        self._max_log_bytes = settings.max_log_bytes
        self._detached = settings.detached
        self._silent = silent
        self._stop_requested = False
        self._lock: IO[str] | None = None

    @abstractmethod
    def start(self) -> None:
        """Start all parts, and wait until they answer or `stopping()` is true. Raises RStarError if a part fails."""

    @abstractmethod
    def ready(self) -> Event:
        """Called once, after `start`. Returns the event `ready` for the process that started the supervisor."""

    def check(self) -> None:  # noqa: B027, there need not be more to do
        """Called after each check of the parts, several times a second."""

    def restart_failed(self, error: RStarError) -> None:
        """Called if a part cannot be restarted, or must not be restarted. An error that this method raises ends the
        service.
        """
        raise error

    def failed(self, error: RStarError) -> None:
        """Called if the service failed to start or gave up, just before the supervisor stops the service's parts."""
        log.error("%s", error)

    def claim(self, path: Path, lock_error: UserError) -> None:
        """Lock a file until `close`, or until this process ends.

        Raises `lock_error` if another process has the lock.
        """
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock = path.open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise lock_error from None
        except OSError as error:
            log.warning(
                "%s cannot be locked, so a second process that uses it is not noticed: %s", path, error
            )

    def stopping(self, wait_s: float = 0.0) -> bool:
        """Whether the supervisor has to stop, now or within `wait_s` seconds."""
        starter = [] if self._detached else [sys.stdin]
        return self._stop_requested or bool(select.select(starter, [], [], wait_s)[0])

    def run(self) -> None:
        """Start the service and keep it running until it has to stop or fails. Events go to standard output."""
        signal.signal(signal.SIGTERM, self._on_signal)
        try:
            self.start()
            if not self.stopping():
                emit(self.ready())
                if self._silent:
                    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
                self._watch()
        except (RStarError, OSError) as raised:
            error = os_failure(raised) if isinstance(raised, OSError) else raised
            self.failed(error)
            user_error = isinstance(error, UserError)
            emit(Event(kind="failed", text=error.message, hint=error.hint, user_error=user_error))
        finally:
            self.close()

    def _on_signal(self, _signal: int, _frame: object) -> None:
        self._stop_requested = True

    def _watch(self) -> None:
        rotation = Rotation(self.logs, self._max_log_bytes)
        while not self.stopping(CHECK_EVERY_S):
            for part in (part for wave in self.waves for part in wave):
                try:
                    part.restart_if_dead()
                except RStarError as error:
                    self.restart_failed(error)
                except (OSError, SubprocessError) as error:
                    # The machine is out of processes, memory, file descriptors or disk space at the moment.
                    self.restart_failed(Failure(f"a part that ended cannot be restarted: {error}"))
            rotation.rotate_if_due()
            self.check()

    def close(self) -> None:
        """Stop all parts, one group after the other, and release the lock of `claim`. The parts of a group are stopped
        together."""
        for wave in reversed(self.waves):
            stop_groups([part.process for part in wave], max((part.stop_s for part in wave), default=0.0))
        if self._lock is not None:
            self._lock.close()


def emit(event: Event) -> None:
    print(event.model_dump_json(), flush=True)
