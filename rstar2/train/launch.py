"""Runs a trainer process: writes its log, limits the time of every wait, leaves no child processes behind, and finds
the cause of a failure."""

from __future__ import annotations

import contextlib
import secrets
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rstar2.errors import Failure
from rstar2.processes import start_bound, stop_group
from rstar2.train.command import CPU_ENVIRONMENT, Command
from rstar2.train.records.final_error import FINAL_ERROR_FILE, read_final_error
from rstar2.train.records.progress import ACTIVITY_FILE, PROGRESS_FILE, changed_at, describe
from rstar2.train.records.steps import metrics_rows
from rstar2.train.stopping import StopAfterStep
from rstar2.train.trainer.causes import find_cause
from rstar2.train.trainer.checkpoints import newest_size
from rstar2.train.verl import fork_client

POLL_S = 0.25
SAVING_POLL_S = 10.0
"""Number of seconds between two checks of the size of a checkpoint that is being written. The checks are rare, because
a checkpoint can have hundreds of files."""
STOP_S = 20.0
"""Maximum number of seconds that a trainer may take to end after it was asked to end."""
RAY_STARTS = 10
"""Maximum number of times that a trainer is started if Ray times out."""
_RAY_TIMED_OUT = "The current node timed out during startup"
"""The message that Ray prints if Ray's own processes take more than 30 s to start, or Ray's agents more than 15 s. No
setting changes the limits of 30 s and 15 s, and a busy machine exceeds them."""


@dataclass(frozen=True)
class SignsOfLife:
    """The files that show that a trainer is making progress.

    New lines in the trainer's log do not show progress, because VERL prints a line every minute even when it hangs.
    """

    metrics: Path
    """The file to which the trainer writes a line of JSON per step."""
    folder: Path
    """The stage's folder, which contains the progress files (`rstar2.train.records.progress`) and the checkpoints."""
    hung_after_s: float
    """The trainer counts as hung after this many seconds without a sign of life."""
    on_rollouts: Callable[[], None] = lambda: None
    """Called when the count of finished rollouts has changed."""

    def working(self) -> tuple[int, ...]:
        """Returns a value that changes while the trainer makes rollouts, makes updates or sends weights."""
        return tuple(changed_at(self.folder / name) for name in (PROGRESS_FILE, ACTIVITY_FILE))

    def saving(self) -> tuple[int, int]:
        """Returns a value that changes while the trainer writes a checkpoint."""
        return newest_size(self.folder / "checkpoints")


def run_trainer(
    command: Command,
    log: Path,
    signs: SignsOfLife,
    on_step: Callable[[dict[str, Any]], None],
    warn: Callable[[str], None],
) -> None:
    """Runs a trainer until it ends. `run_trainer` must be called from the main thread, because it handles signals.

    If Ray does not start in time, the trainer is started again. The trainer is started at most `RAY_STARTS` times in
    all.

    Args:
        log: the file to which the trainer's output is appended.
        on_step: called with each new line of the metrics, `{"step": …, "data": {…}}`.
        warn: called with a message to the user if a signal arrives, see `rstar2.train.stopping`.

    Raises:
        Failure: the trainer failed or hung. The message names the cause from the log, and says what the user can do.
        KeyboardInterrupt: Ctrl-C was pressed. The step that was running at that moment has been saved.
        SystemExit: another signal arrived. The step that was running when the signal arrived has been saved.
    """
    with StopAfterStep(signs.folder, warn) as stop:
        _run_started(command, log, signs, on_step, stop)
        stop.end()


def _run_started(
    command: Command,
    log: Path,
    signs: SignsOfLife,
    on_step: Callable[[dict[str, Any]], None],
    stop: StopAfterStep,
) -> None:
    """Runs a trainer until it ends, and restarts it if Ray does not start in time. Raises Failure in the same cases as
    `run_trainer`."""
    if fork_client.SOCKET_VARIABLE in command.env:
        command = _forked(command)
    if command.nodes > 1:
        command = _on_every_node(command)
    for start in range(1, RAY_STARTS + 1):
        begun_at = log.stat().st_size if log.exists() else 0
        code = _run_once(command, log, signs, on_step, stop)
        if code == 0:
            return
        cause = find_cause(log, begun_at, code)
        if _RAY_TIMED_OUT not in cause.line or start == RAY_STARTS:
            raise Failure(
                f"the trainer ended with exit code {code}: {cause.line}",
                f"{cause.remedy}\nThe whole log: {log}".lstrip(),
            )
        stop.end()


def _run_once(
    command: Command,
    log: Path,
    signs: SignsOfLife,
    on_step: Callable[[dict[str, Any]], None],
    stop: StopAfterStep,
) -> int:
    """Starts a trainer once. Returns the exit code of the trainer."""
    begun_at = log.stat().st_size if log.exists() else 0
    process = start_bound(command.argv, log, env=command.env)
    position, working, saving = 0, signs.working(), signs.saving()
    alive_at = saving_at = time.monotonic()
    try:
        while True:
            ended = process.poll() is not None
            lines, position = _whole_lines(signs.metrics, position)
            for line in lines:
                stop.step_ended()
                on_step(line)
            if error := read_final_error(signs.folder / FINAL_ERROR_FILE):
                raise error
            stop.end_if_discarded()
            if ended:
                return process.wait()
            stop.report()
            if (now_working := signs.working()) != working:
                if now_working[0] != working[0]:
                    signs.on_rollouts()
                working, alive_at = now_working, time.monotonic()
            elif lines:
                alive_at = time.monotonic()
            elif time.monotonic() - max(alive_at, saving_at) > min(SAVING_POLL_S, signs.hung_after_s):
                saving_at = time.monotonic()
                if signs.saving() != saving:
                    saving, alive_at = signs.saving(), time.monotonic()
            if time.monotonic() - alive_at > signs.hung_after_s:
                raise _hung(signs, log, begun_at)
            time.sleep(POLL_S)
    finally:
        stop_group(process, STOP_S, signal.SIGINT)


def run_export(command: Command, log: Path, timeout_s: float) -> None:
    """Runs the command that exports a checkpoint as a model.

    Raises Failure if the export fails, or takes longer than `timeout_s` seconds.
    """
    if fork_client.SOCKET_VARIABLE in command.env:
        command = _forked(command)
    begun_at = log.stat().st_size if log.exists() else 0
    process = start_bound(command.argv, log, env=command.env)
    again = f"Running the same command again repeats only the export. The whole log: {log}"
    try:
        code = process.wait(timeout_s)
    except subprocess.TimeoutExpired as error:
        raise Failure(
            f"exporting a checkpoint as a model took longer than hardware.export_timeout_s = {timeout_s:g}",
            f"Raise the limit. {again}",
        ) from error
    finally:
        stop_group(process, STOP_S)
    if code:
        cause = find_cause(log, begun_at, code)
        raise Failure(
            f"exporting a checkpoint as a model ended with exit code {code}: {cause.line}",
            f"{cause.remedy}\n{again}".lstrip(),
        )


def _hung(signs: SignsOfLife, log: Path, begun_at: int) -> Failure:
    """Returns the error for a trainer that was stopped because it gave no sign of life."""
    cause = find_cause(log, begun_at)
    activity = f"; {text}" if (text := describe(signs.folder)) else ""
    return Failure(
        f"the trainer was stopped: for {signs.hung_after_s:g} s it gave no sign of life, such as a finished rollout or "
        f"micro-batch{activity}. Its log says: {cause.line}",
        f"{cause.remedy or 'If a part of the work does take that long, raise hardware.hung_after_s.'}\n"
        f"The same command continues from the last checkpoint. The whole log: {log}",
    )


@contextlib.contextmanager
def fork_server(log: Path) -> Iterator[dict[str, str]]:
    """Starts a server that forks the trainers' processes, so that the processes need not import VERL themselves. The
    server is for CPUs only.

    If the server has ended, the processes start in the usual way.

    Args:
        log: the file to which the server's output is appended.

    Yields:
        Environment variables for a `Command`. The variables make the server fork the processes of the command.
    """
    # The socket is in the abstract namespace, so that a killed run leaves no file. The server checks who connects.
    name = f"rstar2-fork-server-{secrets.token_hex(8)}"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"\0{name}")
        # From now on, connections wait until the server has imported everything.
        listener.listen(64)
        descriptor = listener.fileno()
        command = [sys.executable, "-m", "rstar2.train.verl.fork_server", str(descriptor), str(log)]
        server = start_bound(command, log, pass_fds=[descriptor], env=CPU_ENVIRONMENT)
    try:
        yield {fork_client.SOCKET_VARIABLE: name}
    finally:
        stop_group(server, STOP_S)


def _forked(command: Command) -> Command:
    """Returns a command whose process, and whose Ray workers, are forked by the fork server."""
    client = [sys.executable, "-I", "-S", fork_client.__file__]
    argv = [*client, *command.argv[1:]]
    if "verl.trainer.main_ppo" in argv:
        argv.append(f"+ray_kwargs.ray_init.runtime_env.py_executable='{shlex.join(client)}'")
    return Command(argv, command.env)


def _on_every_node(command: Command) -> Command:
    """Returns a command that runs the given command on `command.nodes` nodes."""
    arguments = [str(command.nodes), str(command.gpus_per_node), ",".join(command.env)]
    return Command(
        [sys.executable, "-m", "rstar2.train.verl.every_node", *arguments, *command.argv[1:]], command.env
    )


def _whole_lines(path: Path, position: int) -> tuple[list[dict[str, Any]], int]:
    """Reads the complete lines of JSON after a position in a file. Returns the lines, and the position after the last
    returned line."""
    if not path.exists():
        return [], position
    with path.open("rb") as file:
        file.seek(position)
        data = file.read()
    return list(metrics_rows(data)), position + data.rfind(b"\n") + 1
