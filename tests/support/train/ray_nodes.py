"""A Ray cluster of several nodes on this machine. Each node reports GPUs that do not exist."""

from __future__ import annotations

import secrets
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from subprocess import Popen
from tempfile import TemporaryDirectory

from support.waiting import wait_until

from rstar2.processes import free_port, start_bound, stop_group

STARTS = 10
_START = (sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--disable-usage-stats")
_STARTED = "Ray runtime started"


def _listens(port: int) -> bool:
    with socket.socket() as connection:
        return connection.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def ray_nodes(folder: Path, gpus: list[int]) -> Iterator[dict[str, str]]:
    """Start one node per entry of `gpus`, which is the node's number of GPUs. Yields the environment of programs that
    use the cluster."""
    port = free_port()
    address = f"127.0.0.1:{port}"
    # Ray's clusters require a token. Ray's commands find it by themselves, but `ray.init` does not.
    env = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    # On a busy machine, nodes and workers take longer to start than Ray allows by default.
    env |= {"RAY_raylet_start_wait_time_s": "40", "RAY_worker_register_timeout_seconds": "600"}
    # By default each node starts one process per CPU, most of which tests never use.
    env |= {"RAY_prestart_worker_first_driver": "0"}
    with ExitStack() as stack:
        # Paths of sockets may have at most 107 characters, and pytest's folders are too long.
        sockets = stack.enter_context(TemporaryDirectory(prefix="ray"))
        for number, count in enumerate(gpus):
            head = ["--head", f"--port={port}", "--include-dashboard=false", f"--temp-dir={sockets}"]
            words = [
                *(head if number == 0 else [f"--address={address}"]),
                f"--num-gpus={count}",
                "--num-cpus=4",
            ]
            stack.callback(_stop, _start(words, folder / f"node{number}.log", env))
            wait_until(lambda: _listens(port))
        yield {**env, "RAY_ADDRESS": address}


def _start(words: list[str], log: Path, env: dict[str, str]) -> Popen[bytes]:
    """Start a node. Retries if the node gave up because its agent had not started after 15 seconds, Ray's fixed
    limit."""
    for _ in range(STARTS):
        log.unlink(missing_ok=True)
        node = start_bound([*_START, *words, "--object-store-memory=80000000"], log, env=env)
        wait_until(lambda: node.poll() is not None or _STARTED in log.read_text())  # noqa: B023
        if _STARTED in log.read_text():
            return node
        _stop(node)
    raise AssertionError(log.read_text()[-2000:])


def _stop(node: Popen[bytes]) -> None:
    # SIGKILL, because a node takes twenty seconds to end by itself. Its process group leaves nothing behind.
    stop_group(node, 20, signal.SIGKILL)
