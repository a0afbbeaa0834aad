"""Starting a judge from Python: `with running_judge(folder) as judge: …`."""

from __future__ import annotations

import importlib.util
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from rstar2.errors import Failure, UserError
from rstar2.judge.schema import Isolation
from rstar2.judge.service.logs import private_log
from rstar2.judge.service.settings import JudgeHandle, ServiceSettings, StartReport
from rstar2.processes import stop_group

START_S = 200.0
"""And a second a worker."""
STOP_S = 25.0
SECRETS = frozenset({"RSTAR2_JUDGE_TOKEN", "RSTAR2_JUDGE_REDIS"})
"""Variables the judge's processes do not inherit: the programs they run could look for them."""


def start_service(settings: ServiceSettings) -> tuple[subprocess.Popen[bytes], JudgeHandle]:
    """Start a judge in processes of its own and wait until it answers.

    Unless `settings.detached`, it ends when the returned process's standard input is closed, thus also when
    the calling process ends in whatever way.

    Raises:
        UserError: port taken, no Redis server or isolation tier available, token missing.
        Failure: it did not come up.
        ModuleNotFoundError: a package of the extra `judge` is not installed.
    """
    for module in ("redis", "fastapi", "pyseccomp"):
        if importlib.util.find_spec(module) is None:
            raise ModuleNotFoundError(name=module)
    folder = Path(settings.folder)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with private_log(folder / "logs", "supervisor").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "rstar2.judge.service.supervisor"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env={name: value for name, value in os.environ.items() if name not in SECRETS},
            start_new_session=True,
        )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(settings.model_dump_json().encode() + b"\n")
        process.stdin.flush()
        judge = _read_report(process.stdout, folder, START_S + settings.workers)
    except BaseException:
        stop_service(process)
        raise
    finally:
        process.stdout.close()
    if settings.detached:
        process.stdin.close()
    return process, judge


def _read_report(stream: IO[bytes], folder: Path, wait_s: float) -> JudgeHandle:
    deadline = time.monotonic() + wait_s
    text = b""
    while not text.endswith(b"\n"):
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([stream], [], [], left)[0]:
            raise Failure(f"the judge did not start within {wait_s:.0f} s", f"see {folder / 'logs'}")
        data = os.read(stream.fileno(), 65536)
        if not data:
            raise Failure("the judge ended while it was starting", f"see {folder / 'logs'}")
        text += data
    report = StartReport.model_validate_json(text)
    if report.judge is None:
        raise (UserError if report.user_error else Failure)(report.error, report.hint)
    return report.judge


def stop_service(process: subprocess.Popen[bytes]) -> None:
    """End a judge and everything it started."""
    if process.stdin is not None and not process.stdin.closed:
        process.stdin.close()
    stop_group(process, STOP_S)


@contextmanager
def running_judge(
    folder: Path,
    workers: int = 2,
    port: int = 0,
    redis_url: str | None = None,
    isolation: Isolation | None = None,
    preload: bool = True,
) -> Iterator[JudgeHandle]:
    """A judge on the loopback address for the length of a `with` block; see `ServiceSettings`.

    Raises:
        UserError, Failure: see `start_service`.
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
