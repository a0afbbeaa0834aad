"""Runs checks one after another, each in its own process with a time limit, and writes the report after each check."""

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

from rstar2.doctor.gpu_check.check import Check, Device, Measurements, Result, Settings
from rstar2.doctor.gpu_check.checks import CHECKS, ENVIRONMENT
from rstar2.doctor.gpu_check.report import JSON_FILE, MARKDOWN_FILE, Report
from rstar2.errors import Failure, UserError, did_you_mean
from rstar2.files import read_json, write_json, write_text
from rstar2.machine import gpu_names
from rstar2.processes import start_bound, stop_group
from rstar2.supervision.logs import tail
from rstar2.train.trainer.causes import find_cause

STOP_S = 10.0
"""Timeout in seconds for a check to end after it was told to stop."""
END_S = 90.0
"""Timeout in seconds for a check's child processes to end after the check has ended. The processes of Ray need up to a
minute to end after a kill.
"""
POLL_S = 0.2
LOG_LINES = 15
"""Number of lines that the report shows from the end of a failed check's log."""
MARK = "RSTAR2_GPU_CHECK"
"""Environment variable that is set in all processes of a check. The variable identifies the processes that outlive the
check.
"""
_TORCH = "import torch; print(torch.cuda.is_available())"
_TORCH_S = 300.0
Say = Callable[[str], None]


@dataclass(frozen=True)
class CheckOptions:
    """The options of `rstar2 doctor --gpu-check`."""

    output: Path = Path()
    """The folder for the report and the logs."""
    device: Literal["auto", "cuda", "cpu"] = "auto"
    gpus: int = 1
    checks: tuple[str, ...] = ()
    """Names of the checks to run in addition to `environment`. If `checks` is empty, all checks run."""
    limit_s: float | None = None
    """Maximum number of seconds that each check may take. If `limit_s` is None, each check has its own limit."""
    keep: bool = False
    """Whether the models and runs that the checks make are kept."""


def gpu_check(options: CheckOptions, say: Say) -> int:
    """Run the checks, write the report and return the exit code: 0, 1 if a check failed, 130 after Ctrl-C.

    Raises:
        UserError: there is no such check, torch is not installed, or the output folder cannot be used.
    """
    unknown = [name for name in options.checks if name not in CHECKS]
    if unknown:
        suggestion = did_you_mean(unknown[0], CHECKS)
        raise UserError(
            f"--check {unknown[0]} is not a check{suggestion}", f"Give one of: {', '.join(CHECKS)}."
        )
    checks = [
        check
        for name, check in CHECKS.items()
        if not options.checks or name in (*options.checks, ENVIRONMENT)
    ]
    device = _device(options.device)
    with _folders(options, device) as settings:
        results, interrupted = _run_all(checks, settings, options.limit_s, options.output, say)
    files = ", ".join(str(options.output / name) for name in (MARKDOWN_FILE, JSON_FILE))
    say(f"report: {files}; logs: {settings.logs}")
    if interrupted:
        return 130
    return int(any(result.outcome == "failed" for result in results))


def _device(choice: Literal["auto", "cuda", "cpu"]) -> Device:
    """Returns the device to check. `auto` is cuda if PyTorch or a driver reports a GPU.

    Raises UserError if torch cannot be imported.
    """
    try:
        ran = subprocess.run(
            [sys.executable, "-c", _TORCH], capture_output=True, text=True, timeout=_TORCH_S, check=True
        )
    except subprocess.TimeoutExpired as error:
        raise Failure(
            f"importing torch took longer than {_TORCH_S:.0f} s", "Check whether the disk is slow."
        ) from error
    except subprocess.CalledProcessError as error:
        fault = (error.stderr.strip().splitlines() or ["no error message"])[-1]
        raise UserError(
            f"torch cannot be imported: {fault}",
            "Install transformers, and the build of torch for this machine's GPUs.",
        ) from error
    if choice != "auto":
        return choice
    # If there is a driver but torch cannot use it, the check of the environment reports that.
    return "cuda" if ran.stdout.strip().endswith("True") or gpu_names() else "cpu"


@contextmanager
def _folders(options: CheckOptions, device: Device) -> Iterator[Settings]:
    """Make the empty folders of the checks, and yield the settings. The folder `work` is removed at the end."""
    output = options.output.absolute()
    settings = Settings(device, options.gpus, output / "gpu-check-work", output / "gpu-check-logs")
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
        if not options.keep:
            shutil.rmtree(settings.work, ignore_errors=True)


def _run_all(
    checks: Sequence[Check], settings: Settings, limit_s: float | None, output: Path, say: Say
) -> tuple[list[Result], bool]:
    """Run the checks. Returns the results of the checks, and whether Ctrl-C ended the checks."""
    results: list[Result] = []
    interrupted = False
    for number, check in enumerate(checks, 1):
        limit = limit_s or check.limit_s
        if interrupted:
            reason = "Ctrl-C came before the check began"
            results.append(Result(check.name, check.title, "not run", 0.0, limit, reason))
            continue
        say(f"{number}/{len(checks)} {check.title} (limit {limit:.0f} s)")
        begun_at = time.monotonic()
        try:
            result = run_check(check, settings, limit)
        except KeyboardInterrupt:
            interrupted = True
            seconds = time.monotonic() - begun_at
            reason = f"Ctrl-C ended the check after {seconds:.0f} s"
            measured = _measured(check, settings)
            result = Result(check.name, check.title, "not run", seconds, limit, reason, measured=measured)
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
    """Run one check in its own process. When the function returns, all processes that the check started have ended."""
    log, record = settings.logs / f"{check.name}.log", settings.work / f"{check.name}.json"
    mark = secrets.token_hex(8)
    request = {
        "settings": settings.record(),
        "result": str(record),
        "measured": str(_measured_file(check, settings)),
        "limit_s": limit_s,
    }
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
        ended = _end_leftovers(mark, END_S if in_time else 0.0)
    result = _result(check, process.returncode, record, in_time, limit_s, log)
    if not record.exists():
        result.measured = _measured(check, settings)
    result.seconds, result.log = time.monotonic() - begun_at, str(log)
    if ended:
        result.measured.notes.append(
            f"Processes that outlived the check were ended: {', '.join(sorted(set(ended)))}."
        )
    if result.outcome == "failed":
        result.last_lines = tail(log, LOG_LINES)
        result.remedy = result.remedy or find_cause(log).remedy
        if copies := _copy_trainer_logs(settings):
            result.measured.notes.append(f"Trainer logs, beside the check's log: {', '.join(copies)}.")
    return result


def _measured_file(check: Check, settings: Settings) -> Path:
    """Returns the file to which a check's process writes its measurements so far."""
    return settings.work / f"{check.name}-measured.json"


def _measured(check: Check, settings: Settings) -> Measurements:
    """Returns the measurements of a check whose process wrote no result."""
    written = read_json(_measured_file(check, settings))
    return Measurements() if written is None else Measurements.of(written)


def _copy_trainer_logs(settings: Settings) -> list[str]:
    """Copy the logs of the runs in `work` to `logs`, because `work` will be removed. Returns the names of the
    copies.
    """
    names = []
    for path in sorted(settings.work.glob("*/attempts/[0-9]*/*.log")):
        run, attempt = path.parts[-4], path.parts[-2]
        names.append(f"{run}-{attempt}-{path.name}")
        shutil.copy(path, settings.logs / names[-1])
    return names


def _result(check: Check, code: int, record: Path, in_time: bool, limit_s: float, log: Path) -> Result:
    """Returns the result that a check's process wrote.

    If the process wrote no result, returns a failure with the reason.
    """
    written = read_json(record)
    if written is not None:
        return Result.of(written)
    if not in_time:
        reason = f"stopped at the limit of {limit_s:.0f} s"
        remedy = "The log ends with a traceback. If this machine is only slow, set a larger --limit."
    elif code < 0:
        reason = f"the check's process was killed by {signal.Signals(-code).name}"
        remedy = "If you did not kill it, look into the kernel's log (dmesg): the machine may have run out of memory."
    else:
        reason = f"the check's process ended with exit code {code}: {find_cause(log).line}"
        remedy = ""
    return Result(check.name, check.title, "failed", 0.0, limit_s, reason, remedy)


def _end_leftovers(mark: str, wait_s: float) -> list[str]:
    """Wait up to `wait_s` seconds until all processes with a mark in their environment have ended. Kill the processes
    that are still running after this time, and return their names.
    """
    _wait_for_none(mark, wait_s)
    processes = _marked(mark)
    for pid in processes:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    _wait_for_none(mark, STOP_S)
    return list(processes.values())


def _wait_for_none(mark: str, wait_s: float) -> None:
    deadline = time.monotonic() + wait_s
    while _marked(mark) and time.monotonic() < deadline:
        time.sleep(POLL_S)


def _marked(mark: str) -> dict[int, str]:
    """Returns the running processes whose environment variable MARK has the value `mark`, as a map from process id to
    name.
    """
    names = {}
    for entry in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):  # the process has ended, or belongs to another user
            folder = Path("/proc", entry)
            if f"{MARK}={mark}".encode() in (folder / "environ").read_bytes():
                names[int(entry)] = (folder / "comm").read_text().strip()
    return names
