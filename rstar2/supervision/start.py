"""Starts a supervisor process and reads its events."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from rstar2.errors import Failure, UserError
from rstar2.processes import stop_group
from rstar2.supervision.logs import private_log
from rstar2.supervision.settings import Event, SupervisionSettings


class Events:
    """The events that a supervisor prints.

    Args:
        what: the supervisor's name in messages, such as "the judge's supervisor".
        logs: the folder of the supervisor's logs. Error hints mention this folder.
    """

    def __init__(self, stream: IO[bytes], what: str, logs: Path) -> None:
        self._stream = stream
        self._what = what
        self._logs = logs
        self._unread = b""

    def next(self, wait_s: float | None = None) -> Event | None:
        """Returns the next event, or None if the supervisor has ended.

        Args:
            wait_s: seconds to wait. If `wait_s` is None, the wait has no limit. Use None for a supervisor that may
                report nothing for hours.

        Raises:
            UserError, Failure: the service failed. The error's message is the event's text.
            Failure: there was no event within `wait_s` seconds.
        """
        deadline = None if wait_s is None else time.monotonic() + wait_s
        poll = select.poll()
        poll.register(self._stream, select.POLLIN)
        while b"\n" not in self._unread:
            left_s = None if deadline is None else max(0.0, deadline - time.monotonic())
            if not poll.poll(None if left_s is None else 1000 * left_s):
                raise Failure(
                    f"{self._what} reported nothing for {wait_s:g} s", f"See the logs in {self._logs}."
                )
            data = os.read(self._stream.fileno(), 65536)
            if not data:
                return None
            self._unread += data
        line, _, self._unread = self._unread.partition(b"\n")
        event = Event.model_validate_json(line)
        if event.kind == "failed":
            raise (UserError if event.user_error else Failure)(event.text, event.hint)
        return event


@contextmanager
def started_supervisor(
    module: str, settings: SupervisionSettings, what: str, stop_s: float, hidden: Collection[str] = ()
) -> Iterator[tuple[subprocess.Popen[bytes], Events]]:
    """Start `python -m module`, and yield the process and its events. The module reads its settings with
    `begin_module`.

    If the `with` block raises, the supervisor is stopped. If the block does not raise, the supervisor runs until its
    standard input is closed. The standard input is also closed when this process ends, even if this process is killed.

    Args:
        what: see `Events`.
        stop_s: number of seconds within which the supervisor has to stop.
        hidden: environment variables that the supervisor does not inherit.

    Raises:
        UserError: the service's folder cannot be written to.
    """
    folder = Path(settings.folder)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        sink = private_log(folder / "logs", "supervisor").open("ab")
    except OSError as error:
        hint = "Set RSTAR2_STATE to a folder that this user may write to."
        raise UserError(f"cannot write to {folder}: {error}", hint) from error
    with sink as log:
        process = subprocess.Popen(
            [sys.executable, "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env={name: value for name, value in os.environ.items() if name not in hidden},
            start_new_session=True,
        )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(settings.model_dump_json().encode() + b"\n")
        process.stdin.flush()
        yield process, Events(process.stdout, what, folder / "logs")
    except BaseException:
        stop_supervisor(process, stop_s)
        raise
    finally:
        process.stdout.close()


def stop_supervisor(process: subprocess.Popen[bytes], stop_s: float) -> None:
    """Stop a supervisor and all processes that it started.

    Processes that still run after `stop_s` seconds are killed.
    """
    if process.stdin is not None and not process.stdin.closed:
        process.stdin.close()
    stop_group(process, stop_s)
