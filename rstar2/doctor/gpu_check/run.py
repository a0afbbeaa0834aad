"""Runs checks one after another, each in a process of its own that has a limit, and writes the report as it goes."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rstar2.doctor.gpu_check.check import Check, Device, Result, Settings
from rstar2.doctor.gpu_check.checks import CHECKS, ENVIRONMENT
from rstar2.doctor.gpu_check.report import JSON_FILE, MARKDOWN_FILE, Report
from rstar2.errors import Failure, UserError, did_you_mean
from rstar2.files import read_json, write_json, write_text
from rstar2.machine import gpu_names
from rstar2.processes import start_bound, stop_group
from rstar2.supervision.logs import tail
from rstar2.train.trainer.causes import find_cause

STOP_S = 10.0
"""How long a check that is stopped may take to end."""
END_S = 90.0
"""How long processes that a check started may outlive it; Ray's take up to a minute after a kill."""
POLL_S = 0.2
SHOWN_LINES = 15
"""Lines of a failed check's log that are shown."""
MARK = "RSTAR2_GPU_CHECK"
"""Variable in the environment of all that a check starts, which marks processes that outlive a check."""
_TORCH = "import torch; print(torch.cuda.is_available())"
_ASK_S = 300.0
Say = Callable[[str], None]


@dataclass(frozen=True)
class Asked:
    """The options of `rstar2 doctor --gpu-check`."""

    output: Path = Path()
    """The folder for the report and the logs."""
    device: Literal["auto", "cuda", "cpu"] = "auto"
    gpus: int = 1
    checks: tuple[str, ...] = ()
    """Names of the checks to run beside `environment`; all if empty."""
    limit_s: float | None = None
    """Seconds that each check may take; None for each check's own limit."""
    keep: bool = False
    """Keep the models and runs that the checks make."""


def gpu_check(asked: Asked, say: Say) -> int:
    """Run the checks, write the report and return the exit code: 0, 1 if a check failed, 130 after Ctrl-C.

    Raises:
        UserError: there is no such check, no torch, or the output folder cannot be used.
    """
    unknown = [name for name in asked.checks if name not in CHECKS]
    if unknown:
        meant = did_you_mean(unknown[0], CHECKS)
        raise UserError(f"no check {unknown[0]}{meant}", f"Checks: {', '.join(CHECKS)}.")
    checks = [
        check for name, check in CHECKS.items() if not asked.checks or name in (*asked.checks, ENVIRONMENT)
    ]
    device = _device(asked.device)
    with _folders(asked, device) as settings:
        results, interrupted = _run_all(checks, settings, asked.limit_s, asked.output, say)
    files = ", ".join(str(asked.output / name) for name in (MARKDOWN_FILE, JSON_FILE))
    say(f"report: {files}; logs: {settings.logs}")
    if interrupted:
        return 130
    return int(any(result.outcome == "failed" for result in results))


def _device(asked: Literal["auto", "cuda", "cpu"]) -> Device:
    """The device to check: GPUs if PyTorch or a driver knows of one. A UserError without torch."""
    try:
        answer = subprocess.run(
            [sys.executable, "-c", _TORCH], capture_output=True, text=True, timeout=_ASK_S, check=True
        )
    except subprocess.TimeoutExpired as error:
        raise Failure(f"importing torch took longer than {_ASK_S:.0f} s", "Look for a slow disk.") from error
    except subprocess.CalledProcessError as error:
        said = (error.stderr.strip().splitlines() or ["it says nothing"])[-1]
        raise UserError(
            f"torch cannot be imported: {said}",
            "Install torch with the build for this machine's GPUs, and transformers.",
        ) from error
    if asked != "auto":
        return asked
    # With a driver and a torch that cannot use it, the check of the environment says so.
    return "cuda" if answer.stdout.strip().endswith("True") or gpu_names() else "cpu"


@contextmanager
def _folders(asked: Asked, device: Device) -> Iterator[Settings]:
    """The folders of the checks, empty; what lies in `work` is removed at the end."""
    output = asked.output.absolute()
    settings = Settings(device, asked.gpus, output / "gpu-check-work", output / "gpu-check-logs")
    try:
        for folder in (settings.work, settings.logs):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
    except OSError as error:
        raise UserError(
            f"cannot use {output}: {error.strerror}", "Give another folder with --output."
        ) from error
    try:
        yield settings
    finally:
        if not asked.keep:
            shutil.rmtree(settings.work, ignore_errors=True)


def _run_all(
    checks: Sequence[Check], settings: Settings, limit_s: float | None, output: Path, say: Say
) -> tuple[list[Result], bool]:
    """The result of every check, and whether Ctrl-C ended them."""
    results: list[Result] = []
    interrupted = False
    for at, check in enumerate(checks, 1):
        limit = limit_s or check.limit_s
        if interrupted:
            reason = "Ctrl-C came before it began"
            results.append(Result(check.name, check.title, "not run", 0.0, limit, reason))
            continue
        say(f"{at}/{len(checks)} {check.title} (limit {limit:.0f} s)")
        begun_at = time.monotonic()
        try:
            result = run_check(check, settings, limit)
        except KeyboardInterrupt:
            interrupted = True
            seconds = time.monotonic() - begun_at
            reason = f"Ctrl-C ended it after {seconds:.0f} s"
            result = Result(check.name, check.title, "not run", seconds, limit, reason)
        results.append(result)
        say(f"    {result.outcome} after {result.seconds:.0f} s: {result.reason or result.measured.summary}")
        if result.remedy:
            say(f"    {result.remedy}")
        _write(output, Report(settings.device, results, interrupted))
    _write(output, Report(settings.device, results, interrupted))
    return results, interrupted


def _write(output: Path, report: Report) -> None:
    try:
        write_json(output / JSON_FILE, report.record())
        write_text(output / MARKDOWN_FILE, report.markdown())
    except OSError as error:
        raise Failure(
            f"cannot write the report to {output}: {error.strerror}", "Give another folder with --output."
        ) from error


def run_check(check: Check, settings: Settings, limit_s: float) -> Result:
    """Run one check in a process of its own. It and all that it started have ended when this returns."""
    log, record = settings.logs / f"{check.name}.log", settings.work / f"{check.name}.json"
    mark = secrets.token_hex(8)
    request = {"settings": settings.record(), "result": str(record), "limit_s": limit_s}
    module = check.run.__module__
    begun_at = time.monotonic()
    process = start_bound(
        [sys.executable, "-m", "rstar2.doctor.gpu_check.child", module],
        log,
        json.dumps(request) + "\n",
        env={MARK: mark},
    )
    in_time = False
    try:
        process.wait(limit_s)
        in_time = True
    except subprocess.TimeoutExpired:
        in_time = False
    finally:
        stop_group(process, STOP_S)
        left = _end_leftovers(mark, END_S if in_time else 0.0)
    result = _result(check, process.returncode, record, in_time, limit_s, log)
    result.seconds, result.log = time.monotonic() - begun_at, str(log)
    if left:
        result.measured.notes.append(
            f"Processes that it left behind were ended: {', '.join(sorted(set(left)))}."
        )
    if result.outcome == "failed":
        result.last_lines = tail(log, SHOWN_LINES)
        result.remedy = result.remedy or find_cause(log).remedy
        if copies := _keep_logs_of_runs(settings):
            result.measured.notes.append(f"Logs of its trainers, beside its own: {', '.join(copies)}.")
    return result


def _keep_logs_of_runs(settings: Settings) -> list[str]:
    """Copy the logs of the runs in `work`, which is removed, to the logs; returns the names of the copies."""
    names = []
    for path in sorted(settings.work.glob("*/attempts/[0-9]*/*.log")):
        run, attempt = path.parts[-4], path.parts[-2]
        names.append(f"{run}-{attempt}-{path.name}")
        shutil.copy(path, settings.logs / names[-1])
    return names


def _result(check: Check, code: int, record: Path, in_time: bool, limit_s: float, log: Path) -> Result:
    """Returns the result that a check's process wrote, or one that says why it wrote none."""
    written = read_json(record)
    if written is not None:
        return Result.of(written)
    if not in_time:
        reason = f"it was stopped at its limit of {limit_s:.0f} s"
        remedy = "Its log ends with where it was. If this machine is only slow, set a larger --limit."
    elif code < 0:
        reason = f"its process was killed by {signal.Signals(-code).name}"
        remedy = "If nobody did so, the kernel's log (dmesg) says whether the machine ran out of memory."
    else:
        reason = f"its process ended with exit code {code}: {find_cause(log).line}"
        remedy = ""
    return Result(check.name, check.title, "failed", 0.0, limit_s, reason, remedy)


def _end_leftovers(mark: str, wait_s: float) -> list[str]:
    """End the processes that have the mark; returns the names of those that did not end by themselves in time."""
    _wait_for_none(mark, wait_s)
    left = _marked(mark)
    for pid in left:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    _wait_for_none(mark, STOP_S)
    return list(left.values())


def _wait_for_none(mark: str, wait_s: float) -> None:
    deadline = time.monotonic() + wait_s
    while _marked(mark) and time.monotonic() < deadline:
        time.sleep(POLL_S)


def _marked(mark: str) -> dict[int, str]:
    """The processes with the mark in their environment, and their names; those that ended count no more."""
    found = {}
    for entry in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):  # it has ended, or is another user's
            folder = Path("/proc", entry)
            if f"{MARK}={mark}".encode() in (folder / "environ").read_bytes():
                found[int(entry)] = (folder / "comm").read_text().strip()
    return found
