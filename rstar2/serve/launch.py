"""Starts one server process, reports its progress while it loads, and waits until it answers."""

from __future__ import annotations

import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from rstar2.errors import Failure, UserError
from rstar2.processes import answers, listens, start_bound, stop_group
from rstar2.serve.causes import explained, explained_end
from rstar2.supervision.logs import tail

POLL_S = 0.5
STOP_S = 30.0
OnProgress = Callable[[str], None]
"""Called with a few words about what a server is doing, whenever that changes."""
_STAGES = (
    (r"downloading|fetching \d+ files", "downloading the model"),
    (r"starting to load model|loading (?:safetensors|checkpoint|weights)", "loading the weights"),
    (r"torch\.compile|dynamo bytecode|compiling a graph|inductor", "compiling"),
    (r"gpu kv cache size|cpu kv cache size|# (?:gpu|cpu) blocks|kv cache", "sizing the KV cache"),
    (r"capturing (?:cuda|cudagraph)|graph capturing|warming up", "warming up"),
    (r"application startup|starting vllm (?:api )?server|uvicorn running", "opening the port"),
)
"""Patterns of log lines, each with a phrase for what a server is doing when it writes such a line. The phrase for the
last matching line in the log is shown.
"""
_PERCENT = re.compile(r"(\d{1,3})%.*(?:completed|\|)")


def stage(lines: Sequence[str]) -> str:
    """Returns what the server is doing according to the last lines of its log, or "" if these lines do not say."""
    for line in reversed(lines):
        for pattern, words in _STAGES:
            if re.search(pattern, line, re.IGNORECASE):
                percent = _PERCENT.search(line)
                return f"{words}, {percent[1]} %" if percent else words
    return ""


@dataclass(frozen=True)
class StartedServer:
    """A server process, and the URL at which it will answer."""

    process: subprocess.Popen[bytes]
    name: str
    """The server's name in messages."""
    url: str
    log: Path


def start_server(
    command: Sequence[str], environment: Mapping[str, str], log: Path, text: str = ""
) -> subprocess.Popen[bytes]:
    """Start a server, with `text` as its standard input. The server's output is appended to `log`.

    Raises Failure if the program cannot be started.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    log.touch()
    try:
        # After SIGTERM, the server ends its own child processes. A kill would leave them behind.
        return start_bound(command, log, text, env=environment, ended_by=signal.SIGTERM)
    except OSError as error:
        raise Failure(f"cannot start {command[0]}: {error.strerror}", "Install it again.") from error


def wait_ready(
    server: StartedServer,
    ready_s: float,
    on_progress: OnProgress | None = None,
    stopping: Callable[[], bool] = lambda: False,
) -> None:
    """Wait until the server answers, or until `stopping` returns true.

    Raises:
        UserError: another program answers at the server's URL.
        UserError, Failure: the server ended (see `explained_end`), or did not answer within `ready_s` seconds (see
            `explained`).
    """
    process, name, url, log = server.process, server.name, server.url, server.log
    deadline, reported = time.monotonic() + ready_s, ""
    while process.poll() is None and not stopping():
        if answers(url):
            if not listens(process.pid, httpx.URL(url).port or 80):
                raise UserError(
                    f"another program answers at {url}, where {name} should answer",
                    "Stop that program, or use another port.",
                )
            return
        if time.monotonic() > deadline:
            raise explained(f"{name} did not answer at {url} within {ready_s:g} seconds", log)
        doing = stage(tail(log, 40)) if on_progress else ""
        if on_progress is not None and doing not in ("", reported):
            reported = doing
            on_progress(doing)
        time.sleep(POLL_S)
    if not stopping():
        raise explained_end(name, process.returncode, log)


@contextmanager
def running_server(
    command: Sequence[str], environment: Mapping[str, str], url: str, log: Path, ready_s: float
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a vLLM server for the length of a `with` block. The block starts when the server answers. The server writes
    to `log`.

    Raises what `wait_ready` raises.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_bytes(b"")
    process = start_server(command, environment, log)
    try:
        wait_ready(StartedServer(process, "vLLM", url, log), ready_s)
        yield process
    finally:
        stop_group(process, STOP_S)
