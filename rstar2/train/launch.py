"""Starts a trainer and stays with it: a log, an end for every wait, no orphans, a cause when it fails."""

from __future__ import annotations

import contextlib
import json
import re
import secrets
import shlex
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rstar2.errors import Failure
from rstar2.processes import start_bound, stop_group
from rstar2.train.command import CPU_ENVIRONMENT, Command
from rstar2.train.verl import fork_client

POLL_S = 0.25
STOP_S = 20.0
"""How long a trainer may take to end once asked to."""
RAY_STARTS = 5
_RAY_TIMED_OUT = "The current node timed out during startup"
"""Ray gives its own processes 30 s to start, which no setting changes and a busy machine exceeds."""
_PREFIX = re.compile(r"^\s*(?:\x1b\[[0-9;]*m)*(?:\([^)]*\)|\[rank\d+\]:)?(?:\x1b\[[0-9;]*m)*\s*")
"""What Ray and torch put before a line of one of their processes."""
_CAUSE = re.compile(r"^(?:\w+\.)*\w*(?:Error|Exception|Interrupt)(?::|$)")


def run_trainer(
    command: Command,
    log: Path,
    metrics: Path,
    on_step: Callable[[dict[str, Any]], None],
    stall_s: float = 3600.0,
) -> None:
    """Run a trainer to its end; everything it prints goes to `log`.

    A Failure where it fails or hangs, with the cause that its log names. Where Ray did not start in time, it is tried
    again, at most `RAY_STARTS` times in all.

    Args:
        metrics: the JSON lines the trainer writes, one a step.
        on_step: called with each new line's content, `{"step": …, "data": {…}}`.
        stall_s: seconds without a line in the log or a step after which the trainer counts as hung.
    """
    if fork_client.SOCKET_VARIABLE in command.env:
        command = _forked(command)
    if command.nodes > 1:
        command = _on_every_node(command)
    for start in range(1, RAY_STARTS + 1):
        code = _run_once(command, log, metrics, on_step, stall_s)
        if code == 0:
            return
        reason = cause(log)
        if _RAY_TIMED_OUT not in reason or start == RAY_STARTS:
            raise Failure(f"the trainer ended with exit code {code}: {reason}", f"The whole log: {log}")


def _run_once(
    command: Command, log: Path, metrics: Path, on_step: Callable[[dict[str, Any]], None], stall_s: float
) -> int:
    """→ the trainer's exit code."""
    process = start_bound(command.argv, log, env=command.env)
    position, size, alive_at = 0, -1, time.monotonic()
    try:
        while True:
            ended = process.poll() is not None
            lines, position = _whole_lines(metrics, position)
            for line in lines:
                on_step(line)
            if ended:
                return process.wait()
            grown = log.stat().st_size
            if lines or grown != size:
                size, alive_at = grown, time.monotonic()
            if time.monotonic() - alive_at > stall_s:
                raise Failure(f"the trainer showed no sign of life for {stall_s:.0f} s", f"Its log: {log}")
            time.sleep(POLL_S)
    finally:
        stop_group(process, STOP_S, signal.SIGINT)


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


def cause(log: Path) -> str:
    """The last exception that a log names, which is what a person would look for."""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - 400_000))
        lines = file.read().decode(errors="replace").splitlines()
    bare = [_PREFIX.sub("", line) for line in lines]
    found = [line for line in bare if _CAUSE.match(line)]
    return found[-1][:500] if found else (bare[-1][:500] if bare else "it printed nothing")


def _whole_lines(path: Path, position: int) -> tuple[list[dict[str, Any]], int]:
    """The whole JSON lines of a file from a position on, and the position after them."""
    if not path.exists():
        return [], position
    with path.open("rb") as file:
        file.seek(position)
        data = file.read()
    whole = data[: data.rfind(b"\n") + 1]
    lines = []
    for line in whole.splitlines():
        with contextlib.suppress(ValueError):  # a line of another format is not a step
            lines.append(json.loads(line))
    return lines, position + len(whole)
