"""Starts vLLM servers on all GPUs of a Ray cluster, and keeps them for as long as it runs.

`python -m rstar2.train.verl.engines.servers COUNT GPUS READY NAMES command …` starts the command COUNT times, each with
GPUS GPUs of a node, `--host` and `--port`; when all answer, their URLs are in the file READY, a JSON list. NAMES are
the environment variables, with commas between, that the nodes get from here. The servers' logs lie beside READY.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import ray

from rstar2.files import write_json
from rstar2.processes import free_port
from rstar2.serve import running_server

READY_S = 1800.0
"""How long a server may take to load its model, once it has its GPUs."""


class Server:
    """An actor that holds a server's GPUs; the server ends with it."""

    def __init__(self) -> None:
        self._stack = ExitStack()

    def start(self, command: list[str], log: Path) -> str:
        """Start the server and return its URL, once it answers; a Failure where it does not."""
        host, port = ray.util.get_node_ip_address(), free_port()
        url = f"http://{host}:{port}"
        words = [*command, "--host", host, "--port", str(port)]
        self._stack.enter_context(running_server(words, {}, url, log, READY_S))
        return url


def run(count: int, gpus: int, ready: Path, names: list[str], command: list[str]) -> None:
    """Start the servers and wait for a signal; raises what Ray raises where one does not start."""
    ray.init(runtime_env={"env_vars": {name: os.environ[name] for name in names}})
    actor: Any = ray.remote(Server)
    servers = [actor.options(num_cpus=1, num_gpus=gpus).remote() for _ in range(count)]
    urls = [
        server.start.remote(command, ready.with_name(f"vllm-{number}.log"))
        for number, server in enumerate(servers)
    ]
    write_json(ready, ray.get(urls))
    signal.pause()


if __name__ == "__main__":
    named = [*filter(None, sys.argv[4].split(","))]
    run(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), named, sys.argv[5:])
