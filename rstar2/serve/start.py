"""Starts a supervisor and passes on what it says: the command line's side of `rstar2 serve`."""

from __future__ import annotations

from collections.abc import Generator

from rstar2.errors import Failure
from rstar2.serve.settings import SupervisorSettings
from rstar2.serve.state import STOP_S, SUPERVISOR
from rstar2.supervision.settings import Event
from rstar2.supervision.start import started_supervisor

START_S = 120.0
"""How long a supervisor may take beside waiting for its processes."""


def supervised(settings: SupervisorSettings, start_s: float = START_S) -> Generator[Event, None, None]:
    """Start a server and yield what its supervisor says, until it ends; if detached, until it answers.

    The server is ended when the iterator is closed before that, or this process ends in whatever way.

    Raises:
        UserError: the model cannot be served so, whatever is tried again.
        Failure: it did not come up, crashed too often, or was stopped before it answered.
    """
    # The supervisor itself gives up after `ready_s` of each process.
    wait_s = start_s + settings.ready_s * sum(map(len, settings.waves))
    with started_supervisor(SUPERVISOR, settings, "the server's supervisor", STOP_S) as (process, events):
        ready = False
        while not (ready and settings.detached):
            event = events.next(None if ready else wait_s)
            if event is None:
                # 0: `rstar2 serve down`.
                if process.wait(STOP_S) != 0:
                    raise Failure("the server's supervisor ended", f"See {settings.folder}/logs.")
                if not ready:
                    raise Failure("the server was stopped while it was starting", "Start it again.")
                break
            ready = ready or event.kind == "ready"
            yield event
    if process.stdin is not None:
        process.stdin.close()
