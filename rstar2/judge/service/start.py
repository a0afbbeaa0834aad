"""Starts a judge from Python: `with running_judge(folder) as judge: …`."""

from __future__ import annotations

import importlib.util
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rstar2.errors import Failure
from rstar2.judge.schema import Isolation
from rstar2.judge.service.settings import JudgeHandle, ServiceSettings
from rstar2.judge.service.state import SUPERVISORS
from rstar2.supervision.start import started_supervisor, stop_supervisor

START_S = 200.0
"""The judge must start within this many seconds, plus one second for each worker."""
STOP_S = 25.0
SECRETS = frozenset({"RSTAR2_JUDGE_TOKEN", "RSTAR2_JUDGE_REDIS", "RSTAR2_GRADER_SECRET"})
"""Environment variables that the judge's processes do not inherit, because untrusted programs might try to read
them."""


def start_service(settings: ServiceSettings) -> tuple[subprocess.Popen[bytes], JudgeHandle]:
    """Start a judge in separate processes and wait until it answers.

    Unless `settings.detached` is set, the judge ends when the standard input of the returned process is closed. The
    judge therefore also ends when the calling process ends, even if the calling process is killed.

    Returns:
        The supervisor's process, and the handle of the judge.

    Raises:
        UserError: the port is in use, no Redis server or isolation tier is available, or a token is missing.
        Failure: the judge did not start.
        ModuleNotFoundError: a package of the extra `judge` is not installed.
    """
    for module in ("redis", "fastapi", "pyseccomp"):
        if importlib.util.find_spec(module) is None:
            raise ModuleNotFoundError(name=module)
    supervisor = SUPERVISORS[0], settings, "the judge's supervisor", STOP_S, SECRETS
    with started_supervisor(*supervisor) as (process, events):
        event = events.next(START_S + settings.workers)
        if event is None:
            raise Failure("the judge ended while it was starting", f"See {settings.folder}/logs.")
    if settings.detached and process.stdin is not None:
        process.stdin.close()
    return process, JudgeHandle.model_validate(event.handle)


def stop_service(process: subprocess.Popen[bytes]) -> None:
    """Stop a judge and all processes that it started."""
    stop_supervisor(process, STOP_S)


@contextmanager
def running_judge(
    folder: Path,
    workers: int = 2,
    port: int = 0,
    redis_url: str | None = None,
    isolation: Isolation | None = None,
    preload: bool = True,
) -> Iterator[JudgeHandle]:
    """Runs a judge on the loopback address during a `with` block. See `ServiceSettings` for the arguments.

    Raises:
        UserError, Failure: for the reasons that `start_service` lists.
    """
    process, handle = start_service(
        ServiceSettings(
            folder=str(folder.resolve()),
            workers=workers,
            port=port,
            redis_url=redis_url,
            isolation=isolation,
            preload=preload,
        )
    )
    try:
        yield handle
    finally:
        stop_service(process)
