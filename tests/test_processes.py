"""Tests of free ports for servers that start later, and of signals that child processes must survive."""

from __future__ import annotations

import os
import signal
import socket
import sys
from pathlib import Path

from support.waiting import wait_until

from rstar2.processes import free_port, start_bound, stop_group


def test_a_free_port_is_none_that_the_kernel_gives_away_and_nothing_listens_there() -> None:
    first, last = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    ports = {free_port() for _ in range(50)}
    assert len(ports) > 40
    for port in ports:
        assert not first <= port <= last
        with socket.socket() as server:
            server.bind(("127.0.0.1", port))
            server.listen()


def test_a_child_survives_the_signal_that_a_scheduler_sends_to_every_process_of_a_job(tmp_path: Path) -> None:
    log = tmp_path / "log"
    child = start_bound([sys.executable, "-c", "import time; print(flush=True); time.sleep(3600)"], log)
    try:
        wait_until(lambda: log.stat().st_size)
        os.killpg(child.pid, signal.SIGUSR1)
        os.killpg(child.pid, signal.SIGTERM)
        assert child.wait(300) == -signal.SIGTERM
    finally:
        stop_group(child, 1.0)
