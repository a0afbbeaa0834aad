"""A Ray cluster of several nodes on this machine, each of which believes it has GPUs."""

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

_START = (sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--disable-usage-stats")


def _listens(port: int) -> bool:
    with socket.socket() as tried:
        return tried.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def ray_nodes(folder: Path, gpus: list[int]) -> Iterator[dict[str, str]]:
    """Start a node for each number of GPUs; yields the environment of programs that use the cluster."""
    port = free_port()
    address = f"127.0.0.1:{port}"
    # Ray's clusters ask for a token, which its own commands find and `ray.init` does not.
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    # On a busy machine a node starts in more than the 30 s that Ray allows it.
    token["RAY_raylet_start_wait_time_s"] = "200"
    with ExitStack() as stack:
        # Its sockets' paths may have 107 characters, which pytest's folders leave no room for.
        sockets = stack.enter_context(TemporaryDirectory(prefix="ray"))
        for number, count in enumerate(gpus):
            head = ["--head", f"--port={port}", "--include-dashboard=false", f"--temp-dir={sockets}"]
            words = [
                *(head if number == 0 else [f"--address={address}"]),
                f"--num-gpus={count}",
                "--num-cpus=4",
            ]
            log = folder / f"node{number}.log"
            node = start_bound([*_START, *words, "--object-store-memory=80000000"], log, env=token)
            # Asked to end, a node takes twenty seconds; killed with its group it leaves nothing either.
            stack.callback(stop_group, node, 20, signal.SIGKILL)

            def started(log: Path = log, node: Popen[bytes] = node) -> bool:
                assert node.poll() is None, log.read_text()[-2000:]
                return "Ray runtime started" in log.read_text()

            wait_until(started, timeout_s=240)
            wait_until(lambda: _listens(port), timeout_s=240)
        yield {**token, "RAY_ADDRESS": address}
