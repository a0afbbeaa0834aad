"""Starts the supervisor of a server and yields its events, for `rstar2 serve` and `rstar2 chat`."""

from __future__ import annotations

from collections.abc import Generator

from rstar2.errors import Failure
from rstar2.serve.settings import SupervisorSettings
from rstar2.serve.state import STOP_S, SUPERVISOR
from rstar2.supervision.settings import Event
from rstar2.supervision.start import started_supervisor

START_S = 120.0
"""Maximum number of seconds that a supervisor needs in addition to the loading time of its processes."""


def supervised(settings: SupervisorSettings, start_s: float = START_S) -> Generator[Event, None, None]:
    """Start a server and yield the events of its supervisor until the server ends. For a detached server, the events
    are yielded until the server answers.

    If the iterator is closed earlier, or if this process ends earlier (even by a kill), the server is ended too.

    Raises:
        UserError: the model cannot be served with these settings, and another attempt would fail too.
        Failure: the server did not start, crashed too often, or was stopped before it answered.
    """
    # The supervisor itself gives up if a process has not answered after `ready_s`.
    wait_s = start_s + settings.ready_s * sum(map(len, settings.waves))
    with started_supervisor(SUPERVISOR, settings, "the server's supervisor", STOP_S) as (process, events):
        ready = False
        while not (ready and settings.detached):
            event = events.next(None if ready else wait_s)
            if event is None:
                # The exit code is 0 after `rstar2 serve down`.
                if process.wait(STOP_S) != 0:
                    raise Failure("the server's supervisor ended", f"See the logs in {settings.folder}/logs.")
                if not ready:
                    raise Failure("the server was stopped while it was starting", "Start it again.")
                break
            ready = ready or event.kind == "ready"
            yield event
    if process.stdin is not None:
        process.stdin.close()
