"""Starts one server process, says what it is doing while it loads, and waits until it answers."""

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
"""Gets what a server is doing, in a few words, whenever that changes."""
_STAGES = (
    (r"downloading|fetching \d+ files", "downloading the model"),
    (r"starting to load model|loading (?:safetensors|checkpoint|weights)", "loading the weights"),
    (r"torch\.compile|dynamo bytecode|compiling a graph|inductor", "compiling"),
    (r"gpu kv cache size|cpu kv cache size|# (?:gpu|cpu) blocks|kv cache", "sizing the KV cache"),
    (r"capturing (?:cuda|cudagraph)|graph capturing|warming up", "warming up"),
    (r"application startup|starting vllm (?:api )?server|uvicorn running", "opening the port"),
)
"""Patterns of a log's lines, and what they mean; a later line wins."""
_PERCENT = re.compile(r"(\d{1,3})%.*(?:completed|\|)")


def stage(lines: Sequence[str]) -> str:
    """What the last lines of a log say that the server is doing; empty where they say nothing known."""
    for line in reversed(lines):
        for pattern, words in _STAGES:
            if re.search(pattern, line, re.IGNORECASE):
                done = _PERCENT.search(line)
                return f"{words}, {done[1]} %" if done else words
    return ""


@dataclass(frozen=True)
class StartedServer:
    """A process that is to answer at a URL."""

    process: subprocess.Popen[bytes]
    name: str
    """For messages."""
    url: str
    log: Path


def start_server(
    command: Sequence[str], environment: Mapping[str, str], log: Path, text: str = ""
) -> subprocess.Popen[bytes]:
    """Start a server. It reads `text` from its standard input, and what it prints is appended to `log`.

    Raises Failure if there is no such program.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    log.touch()
    try:
        # It ends its own processes when asked to, which a kill would leave behind.
        return start_bound(command, log, text, env=environment, ended_by=signal.SIGTERM)
    except OSError as error:
        raise Failure(f"cannot start {command[0]}: {error.strerror}", "Install it again.") from error


def wait_ready(
    server: StartedServer,
    ready_s: float,
    on_progress: OnProgress | None = None,
    stopping: Callable[[], bool] = lambda: False,
) -> None:
    """Return once the server answers, or once `stopping` returns true.

    Raises:
        UserError: another program answers in its place.
        UserError, Failure: the error of `explained_end` if it ends, and that of `explained` if it does not answer
            within `ready_s` seconds.
    """
    process, name, url, log = server.process, server.name, server.url, server.log
    deadline, said = time.monotonic() + ready_s, ""
    while process.poll() is None and not stopping():
        if answers(url):
            if not listens(process.pid, httpx.URL(url).port or 80):
                raise UserError(
                    f"another program answers at {url}, where {name} should", "Stop it, or use another port."
                )
            return
        if time.monotonic() > deadline:
            raise explained(f"{name} did not answer at {url} within {ready_s:g} seconds", log)
        doing = stage(tail(log, 40)) if on_progress else ""
        if on_progress is not None and doing not in ("", said):
            said = doing
            on_progress(doing)
        time.sleep(POLL_S)
    if not stopping():
        raise explained_end(name, process.returncode, log)


@contextmanager
def running_server(
    command: Sequence[str], environment: Mapping[str, str], url: str, log: Path, ready_s: float
) -> Iterator[subprocess.Popen[bytes]]:
    """A vLLM server for the length of a `with` block, which is entered once it answers. It prints to `log`.

    Raises the error of `wait_ready` if it does not come up.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_bytes(b"")
    process = start_server(command, environment, log)
    try:
        wait_ready(StartedServer(process, "vLLM", url, log), ready_s)
        yield process
    finally:
        stop_group(process, STOP_S)
