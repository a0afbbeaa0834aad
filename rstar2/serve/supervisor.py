"""The process that keeps a server alive: starts its parts, says when they answer, starts again what crashes.

Started by `rstar2.serve.start`; it ends, with everything it started, on SIGTERM or when its standard input closes.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from rstar2.errors import RStarError, UserError
from rstar2.files import write_text
from rstar2.processes import begin_module, stop_group
from rstar2.retry import Backoff
from rstar2.serve.causes import explained_end
from rstar2.serve.launch import STOP_S, start_server, wait_ready
from rstar2.serve.plan import Process
from rstar2.serve.settings import Event, ServerHandle, SupervisorSettings
from rstar2.serve.state import claimed_port, state_file
from rstar2.supervision.logs import Rotation, private_log
from rstar2.supervision.part import Part

CHECK_EVERY_S = 0.2
RESTART_WINDOW_S = 600.0
FIRST_RESTART_S = 1.0
LONGEST_RESTART_S = 30.0


class ServerPart(Part):
    """A part of a server; `on_death` gets it where it crashed."""

    def __init__(self, wanted: Process, log: Path, on_death: Callable[[ServerPart], None]) -> None:
        self.wanted = wanted
        self.log = log
        self.crashes = deque[float]()
        """When it crashed, within the last `RESTART_WINDOW_S`."""
        super().__init__(
            lambda: start_server(wanted.command, wanted.environment, log, wanted.settings),
            lambda: on_death(self),
            Backoff(FIRST_RESTART_S, LONGEST_RESTART_S),
            RESTART_WINDOW_S,
        )


class Supervisor:
    """One `rstar2 serve`."""

    def __init__(self, settings: SupervisorSettings) -> None:
        self.settings = settings
        self.logs = Path(settings.folder) / "logs"
        self.parts: list[ServerPart] = []
        self.state = state_file(settings.port)
        self.stop_asked = False
        self.handle = ServerHandle(
            **settings.model_dump(include={"url", "port", "model", "engine", "with_tools", "folder"}),
            engines=[process.url for process in settings.waves[0]],
            pid=os.getpid(),
            started=time.time(),
            loading=True,
        )

    def stopping(self) -> bool:
        """Whether it was asked to end, or its starter is gone."""
        return self.stop_asked or not (self.settings.detached or not select.select([sys.stdin], [], [], 0)[0])

    def run(self) -> None:
        """Start every part and keep it running until told to stop; an error is said, and kept for `serve status`."""
        try:
            self.state.write(self.handle)
            for path, text in self.settings.files.items():
                write_text(Path(path), text)
            self.start()
            if not self.stopping():
                self.handle.loading = False
                self.state.write(self.handle)
                emit(Event(kind="ready", text=self.settings.url))
                if self.settings.detached:
                    # Nobody reads that pipe any more.
                    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
                self.watch()
            self.state.clear(self.handle.pid)
        except RStarError as error:
            if self.handle.loading:
                self.state.clear(self.handle.pid)
            else:
                self.handle.error = f"{error.message}\n{error.hint}"
                self.state.write(self.handle)
            emit_error(error)
        finally:
            self.close()

    def start(self) -> None:
        """Start every part and wait until it answers; the error of `wait_ready` where one does not."""
        for wave in self.settings.waves:
            new = [self._part(wanted) for wanted in wave]
            for part in new:
                what = part.wanted.name
                wait_ready(
                    part.process,
                    what,
                    part.wanted.url,
                    part.log,
                    self.settings.ready_s,
                    lambda doing, what=what: emit(Event(kind="progress", text=f"{what}: {doing}")),  # type: ignore[misc]
                    self.stopping,
                )

    def watch(self) -> None:
        """Keep every part running until told to stop; the error of the crash after which it gives up."""
        rotation = Rotation(self.logs, self.settings.max_log_bytes)
        while not self.stopping():
            for part in self.parts:
                part.restart_if_dead()
            rotation.rotate_if_due()
            time.sleep(CHECK_EVERY_S)

    def close(self) -> None:
        """End every part: those that use others first."""
        for part in reversed(self.parts):
            stop_group(part.process, STOP_S)

    def _part(self, wanted: Process) -> ServerPart:
        path = private_log(self.logs, wanted.name)
        os.truncate(path, 0)
        part = ServerPart(wanted, path, self._crashed)
        self.parts.append(part)
        return part

    def _crashed(self, part: ServerPart) -> None:
        """Tell that a part is started again, or raise the error of its crash where that was one too many."""
        now = time.monotonic()
        # What it started may hold the GPU.
        stop_group(part.process, 0.0)
        error = explained_end(part.wanted.name, part.process.returncode, part.log)
        while part.crashes and now - part.crashes[0] > RESTART_WINDOW_S:
            part.crashes.popleft()
        if not part.crashes:
            part.pauses.reset()
        part.crashes.append(now)
        if isinstance(error, UserError) or len(part.crashes) > self.settings.restarts:
            raise error
        self.handle.restarts += 1
        self.state.write(self.handle)
        emit(Event(kind="restart", text=f"{error.message}; restarting it", hint=error.hint))


def emit(event: Event) -> None:
    print(event.model_dump_json(), flush=True)


def emit_error(error: RStarError) -> None:
    emit(Event(kind="failed", text=error.message, hint=error.hint, user_error=isinstance(error, UserError)))


def main() -> None:
    supervisor = Supervisor(begin_module(SupervisorSettings))

    def on_signal(_signal: int, _frame: object) -> None:
        supervisor.stop_asked = True

    signal.signal(signal.SIGTERM, on_signal)
    try:
        with claimed_port(supervisor.settings.port):
            supervisor.run()
    except UserError as error:
        emit_error(error)


if __name__ == "__main__":
    main()
