"""The process that keeps a server alive: starts its parts, says when they answer, starts again what crashes.

Started by `rstar2.serve.start`; it ends, with everything it started, on SIGTERM or when its standard input closes.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import subprocess
import sys
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

from rstar2.errors import RStarError, UserError
from rstar2.judge.backoff import Backoff
from rstar2.judge.service.logs import private_log, rotate
from rstar2.processes import begin_module, stop_group
from rstar2.serve.causes import explained
from rstar2.serve.launch import STOP_S, start_server, wait_ready
from rstar2.serve.plan import Process
from rstar2.serve.settings import Event, ServerHandle, SupervisorSettings
from rstar2.serve.state import clear_state, write_state

CHECK_EVERY_S = 0.2
ROTATE_EVERY_S = 5.0
RESTART_WINDOW_S = 600.0
FIRST_RESTART_S = 1.0
LONGEST_RESTART_S = 30.0
log = logging.getLogger(__name__)


@dataclass
class _Part:
    """One process that must always run."""

    wanted: Process
    log: Path
    process: subprocess.Popen[bytes]
    crashes: deque[float] = field(default_factory=deque)
    """When it crashed, within the last `RESTART_WINDOW_S`."""
    backoff: Backoff = field(default_factory=lambda: Backoff(FIRST_RESTART_S, LONGEST_RESTART_S))
    restart_at: float | None = None


class Supervisor:
    """One `rstar2 serve`."""

    def __init__(self, settings: SupervisorSettings) -> None:
        self.settings = settings
        self.logs = Path(settings.folder) / "logs"
        self.parts: list[_Part] = []
        self.stop_asked = False
        self.handle = ServerHandle(
            **settings.model_dump(include={"url", "port", "model", "engine", "with_tools", "folder"}),
            engines=[process.url for process in settings.waves[0]],
            pid=os.getpid(),
            started=time.time(),
        )

    def stopping(self) -> bool:
        """Whether it was asked to end, or its starter is gone."""
        return self.stop_asked or not (self.settings.detached or not select.select([sys.stdin], [], [], 0)[0])

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
        write_state(self.handle)
        rotate_at = 0.0
        while not self.stopping():
            for part in self.parts:
                self._check(part)
            if time.monotonic() >= rotate_at:
                rotate(self.logs, self.settings.max_log_bytes)
                rotate_at = time.monotonic() + ROTATE_EVERY_S
            time.sleep(CHECK_EVERY_S)

    def close(self) -> None:
        """End every part: those that use others first."""
        for part in reversed(self.parts):
            stop_group(part.process, STOP_S)

    def _part(self, wanted: Process) -> _Part:
        path = private_log(self.logs, wanted.name)
        os.truncate(path, 0)
        part = _Part(wanted, path, start_server(wanted.command, wanted.environment, path, wanted.settings))
        self.parts.append(part)
        return part

    def _check(self, part: _Part) -> None:
        """Start a part that crashed again, or raise the error of its crash where that was one too many."""
        now = time.monotonic()
        if part.restart_at is None and part.process.poll() is not None:
            # What it started may hold the GPU.
            stop_group(part.process, 0.0)
            error = explained(f"{part.wanted.name} ended with exit code {part.process.returncode}", part.log)
            while part.crashes and now - part.crashes[0] > RESTART_WINDOW_S:
                part.crashes.popleft()
            if not part.crashes:
                part.backoff.reset()
            part.crashes.append(now)
            if isinstance(error, UserError) or len(part.crashes) > self.settings.restarts:
                raise error
            pause_s = part.backoff.next_s()
            part.restart_at = now + pause_s
            self.handle.restarts += 1
            write_state(self.handle)
            emit(Event(kind="restart", text=f"{error.message}; restarting it", hint=error.hint))
        if part.restart_at is not None and now >= part.restart_at:
            part.restart_at = None
            part.process = start_server(
                part.wanted.command, part.wanted.environment, part.log, part.wanted.settings
            )


def emit(event: Event) -> None:
    print(event.model_dump_json(), flush=True)


def main() -> None:
    supervisor = Supervisor(begin_module(SupervisorSettings))

    def on_signal(_signal: int, _frame: object) -> None:
        supervisor.stop_asked = True

    signal.signal(signal.SIGTERM, on_signal)
    ready = False
    try:
        supervisor.start()
        if not supervisor.stopping():
            write_state(supervisor.handle)
            emit(Event(kind="ready", text=supervisor.settings.url))
            ready = True
            if supervisor.settings.detached:
                # Nobody reads that pipe any more.
                os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
            supervisor.watch()
        clear_state(supervisor.handle)
    except RStarError as error:
        if ready:
            supervisor.handle.error = f"{error.message}\n{error.hint}"
            write_state(supervisor.handle)
        emit(
            Event(kind="failed", text=error.message, hint=error.hint, user_error=isinstance(error, UserError))
        )
    finally:
        supervisor.close()


if __name__ == "__main__":
    main()
