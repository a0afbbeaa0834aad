"""Runs commands of rstar2 as a user would. The output of the commands goes to the check's log."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rstar2.doctor.gpu_check.check import CheckFailed, NotRun, Settings
from rstar2.install import NOT_INSTALLED
from rstar2.processes import start_bound, stop_group
from rstar2.supervision.logs import tail

STOP_S = 30.0
ERROR_LINES = 60
"""The error of a command is searched for in this many lines at the end of the command's log."""


@contextmanager
def started(settings: Settings, name: str, words: Sequence[str]) -> Iterator[subprocess.Popen[bytes]]:
    """Start `rstar2 WORDS`, and stop it at the end of the `with` block. The command's output is appended to the log of
    the check `name`.
    """
    # With RAY_ADDRESS, training would use that cluster instead of this machine's GPUs.
    os.environ.pop("RAY_ADDRESS", None)
    print("$ rstar2", *words, flush=True)
    process = start_bound([sys.executable, "-m", "rstar2", *words], log_of(settings, name))
    try:
        yield process
    finally:
        stop_group(process, STOP_S)


def log_of(settings: Settings, name: str) -> Path:
    """Returns the log of a check, to which the commands of the check append their output."""
    return settings.logs / f"{name}.log"


def run(settings: Settings, name: str, words: Sequence[str]) -> None:
    """Run `rstar2 WORDS` to its end.

    Raises the error of `command_failed` if the exit code is not 0. The check's time limit also limits the command.
    """
    with started(settings, name, words) as process:
        code = process.wait()
    if code:
        raise command_failed(settings, name, words[0], code)


def command_failed(settings: Settings, name: str, verb: str, code: int) -> CheckFailed | NotRun:
    """Returns the error for a command whose exit code is not 0, with the message and the hint that the command printed.
    The error is a NotRun if packages that the command needs are not installed, else a CheckFailed.
    """
    lines = tail(log_of(settings, name), ERROR_LINES)
    at = max((i for i, line in enumerate(lines) if line.startswith("error: ")), default=None)
    if at is None:
        return CheckFailed(f"rstar2 {verb} ended with exit code {code}")
    message, hint = lines[at].removeprefix("error: "), " ".join(lines[at + 1 :])
    if message.startswith(NOT_INSTALLED):
        return NotRun(f"not installed: {message.removeprefix(NOT_INSTALLED)}", hint)
    return CheckFailed(f"rstar2 {verb}: {message}", hint)
