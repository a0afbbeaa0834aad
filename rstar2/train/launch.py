"""Starts a trainer and stays with it: a log, an end for every wait, no orphans, a cause when it fails."""

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
from rstar2.train.records.final_error import read_final_error
from rstar2.train.records.progress import describe
from rstar2.train.records.steps import whole_lines
from rstar2.train.trainer.causes import find_cause
from rstar2.train.verl import fork_client

POLL_S = 0.25
STOP_S = 20.0
"""How long a trainer may take to end once asked to."""
RAY_STARTS = 10
_RAY_TIMED_OUT = "The current node timed out during startup"
"""Ray gives its own processes 30 s to start, and of these its agents 15 s, which no setting changes and a busy machine
exceeds."""


@dataclass(frozen=True)
class SignsOfLife:
    """By what a trainer is known to work. What it prints is none: VERL prints every minute, whatever happens."""

    metrics: Path
    """The JSON lines the trainer writes, one a step."""
    rollouts: Path | None
    """What the sampler writes as rollouts finish, see `rstar2.train.records.progress`; None for SFT."""
    hung_after_s: float
    """Seconds without a step or a finished rollout after which the trainer counts as hung."""
    final_error: Path | None = None
    """Where a process of the trainer leaves an error that must end training, see `rstar2.train.records.final_error`."""


def run_trainer(
    command: Command, log: Path, signs: SignsOfLife, on_step: Callable[[dict[str, Any]], None]
) -> None:
    """Run a trainer to its end; everything it prints goes to `log`.

    A Failure where it fails or hangs, with the cause that its log names and what helps; the error that one of its
    processes left in `signs.final_error`. Where Ray did not start in time, it is tried again, at most `RAY_STARTS`
    times in all.

    Args:
        on_step: called with each new line of the metrics, `{"step": …, "data": {…}}`.
    """
    if fork_client.SOCKET_VARIABLE in command.env:
        command = _forked(command)
    if command.nodes > 1:
        command = _on_every_node(command)
    for start in range(1, RAY_STARTS + 1):
        begun_at = log.stat().st_size if log.exists() else 0
        code = _run_once(command, log, signs, on_step)
        if code == 0:
            return
        found = find_cause(log, begun_at, code)
        if _RAY_TIMED_OUT not in found.line or start == RAY_STARTS:
            raise Failure(
                f"the trainer ended with exit code {code}: {found.line}",
                f"{found.remedy}\nThe whole log: {log}".lstrip(),
            )


def _run_once(
    command: Command, log: Path, signs: SignsOfLife, on_step: Callable[[dict[str, Any]], None]
) -> int:
    """→ the trainer's exit code."""
    begun_at = log.stat().st_size if log.exists() else 0
    process = start_bound(command.argv, log, env=command.env)
    position, seen, alive_at = 0, 0, time.monotonic()
    try:
        while True:
            ended = process.poll() is not None
            lines, position = _whole_lines(signs.metrics, position)
            for line in lines:
                on_step(line)
            if signs.final_error is not None and (error := read_final_error(signs.final_error)):
                raise error
            if ended:
                return process.wait()
            changed = _changed_at(signs.rollouts)
            if lines or changed != seen:
                seen, alive_at = changed, time.monotonic()
            if time.monotonic() - alive_at > signs.hung_after_s:
                raise _hung(signs, log, begun_at)
            time.sleep(POLL_S)
    finally:
        stop_group(process, STOP_S, signal.SIGINT)


def run_export(command: Command, log: Path, timeout_s: float) -> None:
    """Run what makes a model of a checkpoint; a Failure where it fails or takes longer than `timeout_s`."""
    if fork_client.SOCKET_VARIABLE in command.env:
        command = _forked(command)
    begun_at = log.stat().st_size if log.exists() else 0
    process = start_bound(command.argv, log, env=command.env)
    again = f"The same command repeats only the export. The whole log: {log}"
    try:
        code = process.wait(timeout_s)
    except subprocess.TimeoutExpired as error:
        raise Failure(
            f"making the model of a checkpoint took longer than hardware.export_timeout_s = {timeout_s:g}",
            again,
        ) from error
    finally:
        stop_group(process, STOP_S)
    if code:
        found = find_cause(log, begun_at, code)
        raise Failure(
            f"making the model of a checkpoint ended with exit code {code}: {found.line}",
            f"{found.remedy}\n{again}".lstrip(),
        )


def _changed_at(path: Path | None) -> int:
    """When a file was last replaced, in ns; 0 where there is none."""
    try:
        return path.stat().st_mtime_ns if path else 0
    except FileNotFoundError:
        return 0


def _hung(signs: SignsOfLife, log: Path, begun_at: int) -> Failure:
    """What is said of a trainer that was stopped because nothing came of it."""
    found = find_cause(log, begun_at)
    at = f"; {text}" if signs.rollouts and (text := describe(signs.rollouts)) else ""
    return Failure(
        f"the trainer was stopped: no step and no rollout finished for {signs.hung_after_s:g} s{at}. "
        f"Its log says: {found.line}",
        f"{found.remedy or 'If its steps do take that long, raise hardware.hung_after_s.'}\n"
        f"The same command continues from the last checkpoint. The whole log: {log}",
    )


@contextlib.contextmanager
def fork_server(log: Path) -> Iterator[dict[str, str]]:
    """A process that forks the trainers' processes, so that not each has to import VERL; for the CPU profile only.

    Yields environment variables that have a `Command`'s processes forked. Where the server, which prints to `log`,
    has ended they start by themselves.
    """
    # In the abstract namespace, so that a killed run leaves no file; the server asks who connects.
    name = f"rstar2-fork-server-{secrets.token_hex(8)}"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"\0{name}")
        # From here on connections wait until the server has imported everything.
        listener.listen(64)
        descriptor = listener.fileno()
        command = [sys.executable, "-m", "rstar2.train.verl.fork_server", str(descriptor), str(log)]
        server = start_bound(command, log, pass_fds=[descriptor], env=CPU_ENVIRONMENT)
    try:
        yield {fork_client.SOCKET_VARIABLE: name}
    finally:
        stop_group(server, STOP_S)


def _forked(command: Command) -> Command:
    """The same command, and Ray's workers with it, by way of the fork server."""
    client = [sys.executable, "-I", "-S", fork_client.__file__]
    argv = [*client, *command.argv[1:]]
    if "verl.trainer.main_ppo" in argv:
        argv.append(f"+ray_kwargs.ray_init.runtime_env.py_executable='{shlex.join(client)}'")
    return Command(argv, command.env)


def _on_every_node(command: Command) -> Command:
    """The same command, on each of its nodes."""
    where = [str(command.nodes), str(command.gpus_per_node), ",".join(command.env)]
    return Command(
        [sys.executable, "-m", "rstar2.train.verl.every_node", *where, *command.argv[1:]], command.env
    )


def _whole_lines(path: Path, position: int) -> tuple[list[dict[str, Any]], int]:
    """The whole JSON lines of a file from a position on, and the position after them."""
    if not path.exists():
        return [], position
    with path.open("rb") as file:
        file.seek(position)
        data = file.read()
    return list(whole_lines(data)), position + data.rfind(b"\n") + 1
