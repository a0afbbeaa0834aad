"""Starts a supervisor in a process of its own, and reads what it reports."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Generic, TypeVar

from pydantic import BaseModel

from rstar2.processes import stop_group
from rstar2.supervision.logs import private_log

Report = TypeVar("Report", bound=BaseModel)


class Reports(Generic[Report]):
    """The lines of JSON that a process prints, one after the other."""

    def __init__(self, stream: IO[bytes], kind: type[Report]) -> None:
        self._stream = stream
        self._kind = kind
        self._unread = b""

    def next(self, wait_s: float | None) -> Report | None:
        """The next one, None where the process ended; a TimeoutError where neither comes within `wait_s` seconds.

        Without a limit it is for what may be silent as long as it lives.
        """
        deadline = None if wait_s is None else time.monotonic() + wait_s
        poll = select.poll()
        poll.register(self._stream, select.POLLIN)
        while b"\n" not in self._unread:
            left_s = None if deadline is None else max(0.0, deadline - time.monotonic())
            if not poll.poll(None if left_s is None else 1000 * left_s):
                raise TimeoutError
            data = os.read(self._stream.fileno(), 65536)
            if not data:
                return None
            self._unread += data
        line, _, self._unread = self._unread.partition(b"\n")
        return self._kind.model_validate_json(line)


@contextmanager
def started_supervisor(
    module: str,
    settings: BaseModel,
    folder: Path,
    report: type[Report],
    stop_s: float,
    hidden: Collection[str] = (),
) -> Iterator[tuple[subprocess.Popen[bytes], Reports[Report]]]:
    """Start `python -m module`, which reads its settings with `begin_module`, and read its reports within the block.

    Where the block raises it is ended, see `stop_supervisor`; else it continues until its standard input is closed,
    thus also until this process ends in whatever way. Its log is in `logs` in `folder`; of the environment it has all
    but what is `hidden`.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with private_log(folder / "logs", "supervisor").open("ab") as log:
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
        yield process, Reports(process.stdout, report)
    except BaseException:
        stop_supervisor(process, stop_s)
        raise
    finally:
        process.stdout.close()


def stop_supervisor(process: subprocess.Popen[bytes], stop_s: float) -> None:
    """End a supervisor and everything it started; it may take `stop_s` seconds before it is killed."""
    if process.stdin is not None and not process.stdin.closed:
        process.stdin.close()
    stop_group(process, stop_s)
