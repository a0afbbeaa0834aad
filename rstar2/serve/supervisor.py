"""The process that starts, watches and restarts the processes of a server. `rstar2.serve.start` starts this process.

See `rstar2.supervision.supervisor`.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from rstar2.errors import RStarError, UserError
from rstar2.files import write_text
from rstar2.processes import begin_module, stop_group
from rstar2.serve.causes import explained_end
from rstar2.serve.launch import STOP_S, StartedServer, start_server, wait_ready
from rstar2.serve.plan import Process
from rstar2.serve.settings import ServerHandle, SupervisorSettings
from rstar2.serve.state import port_in_use_error, runs_at, server_folder, state_file
from rstar2.supervision.logs import private_log
from rstar2.supervision.part import Part, Restarts
from rstar2.supervision.settings import Event
from rstar2.supervision.supervisor import Supervisor, emit

RESTART_WINDOW_S = 600.0
RESTARTS = Restarts(first_s=1.0, longest_s=30.0, stable_s=RESTART_WINDOW_S)


class ServerPart(Part):
    """One process of a server. `on_death` is called with this part after the process crashed."""

    def __init__(self, planned: Process, log: Path, on_death: Callable[[ServerPart], None]) -> None:
        self.planned = planned
        self.log = log
        self.crashes = deque[float]()
        """Times of the crashes within the last `RESTART_WINDOW_S` seconds, on the monotonic clock."""
        super().__init__(
            lambda: start_server(planned.command, planned.environment, log, planned.settings),
            lambda: on_death(self),
            RESTARTS,
            STOP_S,
        )


class ServerSupervisor(Supervisor):
    """The supervisor of one `rstar2 serve`."""

    def __init__(self, settings: SupervisorSettings) -> None:
        super().__init__(settings, silent=settings.detached)
        self.settings = settings
        self.state = state_file(settings.port)
        self.handle = ServerHandle(
            **settings.model_dump(include={"url", "port", "model", "engine", "with_tools", "folder"}),
            engines=[process.url for process in settings.waves[0]],
            pid=os.getpid(),
            started=time.time(),
            loading=True,
        )

    def start(self) -> None:
        """Start every part and wait until it answers. Raises the error of `wait_ready` if a part does not answer."""
        port = self.settings.port
        self.claim(server_folder(port) / ".lock", port_in_use_error(port))
        if runs_at(port):
            raise port_in_use_error(port)
        self.state.write(self.handle)
        for path, text in self.settings.files.items():
            write_text(Path(path), text)
        for planned in self.settings.waves:
            wave: list[Part] = []
            self.waves.append(wave)
            started = []
            for each in planned:
                started.append(self._part(each))
                wave.append(started[-1])
            for part in started:
                name = part.planned.name
                wait_ready(
                    StartedServer(part.process, name, part.planned.url, part.log),
                    self.settings.ready_s,
                    lambda doing, name=name: emit(Event(kind="progress", text=f"{name}: {doing}")),  # type: ignore[misc]
                    self.stopping,
                )

    def ready(self) -> Event:
        self.handle.loading = False
        self.state.write(self.handle)
        return Event(kind="ready", text=self.settings.url)

    def failed(self, error: RStarError) -> None:
        super().failed(error)
        if not self.handle.loading:
            self.handle.error = f"{error.message}\n{error.hint}"
            self.state.write(self.handle)

    def close(self) -> None:
        if not self.handle.error:
            self.state.clear(self.handle.pid)
        super().close()

    def _part(self, planned: Process) -> ServerPart:
        path = private_log(self.logs, planned.name)
        os.truncate(path, 0)
        return ServerPart(planned, path, self._crashed)

    def _crashed(self, part: ServerPart) -> None:
        """Report that a part is restarted. Raises the error of the crash if the part crashed too often."""
        now = time.monotonic()
        # Child processes of the crashed process may still use the GPU.
        stop_group(part.process, 0.0)
        error = explained_end(part.planned.name, part.process.returncode, part.log)
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


if __name__ == "__main__":
    ServerSupervisor(begin_module(SupervisorSettings)).run()
