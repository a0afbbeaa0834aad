"""Starts one server process, says what it is doing while it loads, and waits until it answers."""

from __future__ import annotations

import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx

from rstar2.errors import Failure, UserError
from rstar2.processes import listens, start_bound, stop_group
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


def start_server(
    command: Sequence[str], environment: Mapping[str, str], log: Path, text: str = ""
) -> subprocess.Popen[bytes]:
    """Start a server whose output is appended to `log`, given a text to read; a Failure without such a program."""
    log.parent.mkdir(parents=True, exist_ok=True)
    log.touch()
    try:
        # It ends its own processes when asked to, which a kill would leave behind.
        return start_bound(command, log, text, env=environment, ended_by=signal.SIGTERM)
    except OSError as error:
        raise Failure(f"cannot start {command[0]}: {error.strerror}", "Install it again.") from error


def answers(url: str) -> bool:
    """Whether a server answers at its /health."""
    with suppress(httpx.TransportError):  # it does not listen
        # To read certificates would be most of the work, and it is asked twice a second.
        answer = httpx.get(f"{url}/health", timeout=5.0, trust_env=False, verify=False)
        return answer.status_code == httpx.codes.OK
    return False


def wait_ready(
    process: subprocess.Popen[bytes],
    name: str,
    url: str,
    log: Path,
    ready_s: float,
    on_progress: OnProgress | None = None,
    stopping: Callable[[], bool] = lambda: False,
) -> None:
    """Return once the server answers, or `stopping` says so.

    The error of `explained_end` where it ends, that of `explained` where it does not answer in `ready_s` seconds;
    UserError where another program answers in its place.
    """
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
    """A vLLM server for the length of a `with` block, which is entered once it answers; its output goes to `log`.

    The error of `wait_ready` where it does not come up.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_bytes(b"")
    process = start_server(command, environment, log)
    try:
        wait_ready(process, "vLLM", url, log, ready_s)
        yield process
    finally:
        stop_group(process, STOP_S)
