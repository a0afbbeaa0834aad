"""Starts a supervisor, passes on what it says, and ends it: the command line's side of `rstar2 serve`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from pathlib import Path

from rstar2.errors import Failure, UserError
from rstar2.judge.service.logs import private_log
from rstar2.processes import stop_group
from rstar2.serve.settings import Event, ServerHandle, SupervisorSettings
from rstar2.serve.state import SUPERVISOR, clear_state, is_running

STOP_S = 90.0
"""For all parts one after the other."""


def supervised(settings: SupervisorSettings) -> Generator[Event, None, None]:
    """Start a server and yield what its supervisor says, until it ends; if detached, until it answers.

    The server is ended when the iterator is closed before that, or this process ends in whatever way.

    Raises:
        UserError: the model cannot be served so, whatever is tried again.
        Failure: it did not come up, or crashed too often.
    """
    folder = Path(settings.folder)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with private_log(folder / "logs", "supervisor").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", SUPERVISOR],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
        )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(settings.model_dump_json().encode() + b"\n")
        process.stdin.flush()
        for line in process.stdout:
            event = Event.model_validate(json.loads(line))
            if event.kind == "failed":
                raise (UserError if event.user_error else Failure)(event.text, event.hint)
            yield event
            if event.kind == "ready" and settings.detached:
                return
        # 0: `rstar2 serve down`.
        if process.wait(STOP_S) != 0:
            raise Failure("the server's supervisor ended", f"See {folder / 'logs'}.")
    except BaseException:
        process.stdin.close()
        stop_group(process, STOP_S)
        raise
    finally:
        process.stdout.close()
        if not process.stdin.closed:
            process.stdin.close()


def end_server(server: ServerHandle) -> None:
    """End a server and everything it started; a Failure where it does not end."""
    if is_running(server):
        os.kill(server.pid, signal.SIGTERM)
    deadline = time.monotonic() + STOP_S
    while is_running(server):
        if time.monotonic() > deadline:
            raise Failure(f"the server (pid {server.pid}) did not stop", f"See {server.folder}/logs.")
        time.sleep(0.05)
    clear_state(server)
