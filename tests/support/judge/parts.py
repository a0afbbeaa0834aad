"""The parts of a judge, started one by one without a supervisor."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
from pathlib import Path

import redis
from support.judge.next_version import Version
from support.waiting import TIMEOUT_S, wait_until

from rstar2.judge.queue import tasks as queue
from rstar2.judge.server.settings import ServerSettings
from rstar2.judge.worker.settings import WorkerSettings
from rstar2.processes import stop_group


class Parts:
    """Starts HTTP processes and workers for one queue, and ends them.

    Args:
        folder: The folder for work and logs.
    """

    def __init__(self, redis_url: str, folder: Path) -> None:
        self.redis_url = redis_url
        self.folder = folder
        self.client = redis.Redis.from_url(redis_url, decode_responses=True)
        self.processes: list[subprocess.Popen[bytes]] = []

    def listen(self) -> tuple[socket.socket, str]:
        listener = socket.create_server(("127.0.0.1", 0))
        return listener, f"http://127.0.0.1:{listener.getsockname()[1]}"

    def serve(self, version: Version, listener: socket.socket) -> subprocess.Popen[bytes]:
        settings = ServerSettings(redis_url=self.redis_url, socket_fd=listener.fileno(), token=None)
        log = self.folder / f"server-{version.name}.log"
        process = version.start("rstar2.judge.server.app", settings, log, (settings.socket_fd,))
        self.processes.append(process)
        return process

    def work(self, version: Version) -> subprocess.Popen[bytes]:
        """Start a worker, and wait until it works for the queue."""
        name = f"worker-{version.name}-{len(self.processes)}"
        folder = self.folder / name
        folder.mkdir()
        settings = WorkerSettings(
            name=name, redis_url=self.redis_url, folder=str(folder), isolation=None, preload=False
        )
        process = version.start("rstar2.judge.worker.main", settings, self.folder / f"{name}.log")
        self.processes.append(process)
        wait_until(lambda: self.client.hexists(queue.WORKERS, name) or process.poll() is not None)
        assert process.poll() is None, (self.folder / f"{name}.log").read_text()
        heartbeat = json.loads(self.client.hget(queue.WORKERS, name) or "")
        assert ("added_later" in heartbeat) == (version.name == "next")
        return process

    def leave(self, worker: subprocess.Popen[bytes]) -> None:
        """Stop a worker with SIGTERM, which makes it leave the queue."""
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(TIMEOUT_S) == 0

    def close(self) -> None:
        for process in self.processes:
            stop_group(process, 10)
        self.client.close()
