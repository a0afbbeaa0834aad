"""Starts the engines of the filter. On a CPU, the engines run in the process of the filter. On GPUs, the engines are
vLLM servers, which use all GPUs.

The servers are started through Ray, on the cluster at RAY_ADDRESS or on this machine.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rstar2.engines.models import open_folder, open_server
from rstar2.errors import Failure, UserError
from rstar2.loop.engine import Engine
from rstar2.loop.turns.choose import load_codec
from rstar2.loop.turns.codec import ChatCodec
from rstar2.processes import start_bound, stop_group
from rstar2.serve import ServeSettings, find_vllm, install_hint, vllm_command
from rstar2.supervision.logs import end_of
from rstar2.train.command import worker_environment
from rstar2.train.recipe import Hardware

CPU_BATCH = 128
"""Number of rollouts that one CPU engine generates concurrently."""
READY_S = 2400.0
"""Timeout in seconds until the servers are ready. The time includes waiting for Ray to assign GPUs, and loading the
policy."""
_POLL_S = 0.5
_STOP_S = 30.0


@contextmanager
def open_engines(model: Path, hardware: Hardware, logs: Path) -> Iterator[tuple[list[Engine], ChatCodec]]:
    """Context manager that starts `hardware.engines` engines with a model. It yields a pair: the engines and the
    model's codec.

    Raises:
        UserError: vLLM is not installed.
        Failure: the servers do not start.
    """
    codec = load_codec(model)
    if hardware.device == "cpu":
        yield [open_folder(model, CPU_BATCH)[0] for _ in range(hardware.engines)], codec
        return
    vllm = find_vllm(sys.executable)
    if vllm is None:
        raise UserError("sampling the training problems needs vLLM, which is not installed", install_hint())
    command, environment = vllm_command(
        vllm,
        ServeSettings(
            model=str(model.absolute()),
            tp=hardware.tensor_parallel,
            extra=("--max-num-seqs", str(hardware.sequences_in_flight)),
        ),
    )
    with running_servers(command, environment, hardware.engines, hardware.tensor_parallel, logs) as urls:
        servers = [asyncio.run(open_server(url, tokenizer=str(model))) for url in urls]
        yield [each.engine for each in servers], codec


@contextmanager
def running_servers(
    command: list[str], environment: dict[str, str], count: int, gpus: int, logs: Path
) -> Iterator[list[str]]:
    """Context manager that starts servers, and stops them when it exits. It yields the list of the servers' URLs.

    Args:
        command: the command that starts one server. `--host` and `--port` are added to the command.
        environment: environment variables of the servers.
        count: number of servers.
        gpus: number of GPUs per server.
        logs: folder for the servers' logs.

    Raises:
        Failure: a server does not start. The error contains the end of the server's log.
    """
    logs = logs.absolute()
    log, ready = logs / "filter_servers.log", logs / "filter_servers.json"
    ready.unlink(missing_ok=True)
    names = [*worker_environment(os.environ)[0], *environment]
    script = [sys.executable, "-m", "rstar2.train.verl.engines.servers"]
    words = [*script, str(count), str(gpus), str(ready), ",".join(names), *command]
    process = start_bound(words, log, env=environment, ended_by=signal.SIGTERM)
    try:
        _wait(process, ready, log)
        yield list(json.loads(ready.read_text(encoding="utf-8")))
    finally:
        stop_group(process, _STOP_S)
        ready.unlink(missing_ok=True)


def _wait(process: subprocess.Popen[bytes], ready: Path, log: Path) -> None:
    deadline = time.monotonic() + READY_S
    while not ready.exists():
        if process.poll() is not None:
            raise Failure(f"the vLLM servers ended with exit code {process.returncode}", end_of(log))
        if time.monotonic() > deadline:
            raise Failure(f"the vLLM servers were not ready within {READY_S:g} seconds", end_of(log))
        time.sleep(_POLL_S)
