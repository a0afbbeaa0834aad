"""Two machines, simulated by two network namespaces, share one queue."""

from __future__ import annotations

import contextlib
import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import redis
from support.judge.judge_faults import done_by, run_through, status_when, wait_heartbeats
from support.waiting import TIMEOUT_S, wait_until

from rstar2.judge.queue.embedded_redis import server_binary
from rstar2.judge.service.start import running_judge
from rstar2.processes import stop_group

HOST_ADDRESS, NAMESPACE_ADDRESS = "10.231.77.1", "10.231.77.2"


@dataclass
class Net:
    """A second network namespace, connected to this one by a virtual cable."""

    name: str


def sh(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True, timeout=TIMEOUT_S)


@pytest.fixture
def net() -> Iterator[Net]:
    name = f"judge{secrets.token_hex(3)}"
    if os.geteuid() != 0:
        pytest.skip("network namespaces need root")
    try:
        sh("ip", "netns", "add", name)
    except (FileNotFoundError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no network namespaces here: {error}")
    try:
        sh("ip", "link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", name)
        sh("ip", "addr", "add", f"{HOST_ADDRESS}/24", "dev", name)
        sh("ip", "link", "set", name, "up")
        sh("ip", "-n", name, "addr", "add", f"{NAMESPACE_ADDRESS}/24", "dev", "eth0")
        for device in ("lo", "eth0"):
            sh("ip", "-n", name, "link", "set", device, "up")
        yield Net(name)
    finally:
        subprocess.run(["ip", "netns", "del", name], check=False, timeout=TIMEOUT_S)


@pytest.fixture
def queue_url(net: Net, tmp_path: Path) -> Iterator[str]:
    password = secrets.token_hex(8)
    config = f"bind {HOST_ADDRESS}\nport 7391\nrequirepass {password}\nsave ''\ndir {tmp_path}\n"
    server = subprocess.Popen(
        [server_binary(), "-"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True
    )
    assert server.stdin is not None
    server.stdin.write(config.encode())
    server.stdin.close()
    url = f"redis://:{password}@{HOST_ADDRESS}:7391/0"

    def answers() -> bool:
        with contextlib.suppress(redis.ConnectionError), redis.Redis.from_url(url) as probe:
            return bool(probe.ping())
        return False

    try:
        wait_until(answers)
        yield url
    finally:
        stop_group(server, TIMEOUT_S)


@pytest.mark.long
def test_both_machines_do_work(net: Net, queue_url: str, tmp_path: Path) -> None:
    words = ["worker", "--redis", queue_url, "--workers", "1", "--folder", str(tmp_path / "there")]
    start = f"from rstar2.cli.judge import app\napp({words!r})"
    with running_judge(tmp_path / "here", workers=1, redis_url=queue_url, preload=False) as judge:
        command = ["ip", "netns", "exec", net.name, sys.executable, "-c", start]
        remote_worker = subprocess.Popen(command, start_new_session=True)
        try:
            status_when(judge, lambda state: len(state["workers"]) == 2)

            def wait_for_both() -> None:
                status_when(judge, lambda state: min(done_by(state)) > 0)

            count = run_through(judge, wait_for_both)
            counts = done_by(wait_heartbeats(judge))
            assert (len(counts), sum(counts)) == (2, count)
        finally:
            stop_group(remote_worker, TIMEOUT_S)
