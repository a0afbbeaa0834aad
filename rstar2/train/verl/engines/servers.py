"""Starts vLLM servers on all GPUs of a Ray cluster. The servers run until this process ends.

`python -m rstar2.train.verl.engines.servers COUNT GPUS READY NAMES command …` starts the command COUNT times, with
`--host` and `--port` added. GPUS is the number of GPUs per server; all GPUs of a server are on one node. When all
servers respond, their URLs are written to the file READY as a JSON list. NAMES are names of environment variables,
separated by commas, that are copied to the nodes. The servers' logs are in the folder of READY.
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
"""Maximum number of seconds that a server may take to load its model after Ray has assigned its GPUs."""


class Server:
    """An actor that owns a server's GPUs. The server stops when the actor ends."""

    def __init__(self) -> None:
        self._stack = ExitStack()

    def start(self, command: list[str], log: Path) -> str:
        """Starts the server, and returns its URL when it responds. Raises Failure if the server does not respond."""
        host, port = ray.util.get_node_ip_address(), free_port()
        url = f"http://{host}:{port}"
        words = [*command, "--host", host, "--port", str(port)]
        self._stack.enter_context(running_server(words, {}, url, log, READY_S))
        return url


def run(count: int, gpus: int, ready: Path, names: list[str], command: list[str]) -> None:
    """Starts the servers and waits for a signal. Raises Ray's error if a server does not start."""
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
    variables = [*filter(None, sys.argv[4].split(","))]
    run(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), variables, sys.argv[5:])
