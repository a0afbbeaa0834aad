"""Ports that are chosen for what is started a moment later."""

from __future__ import annotations

import socket
from pathlib import Path

from rstar2.processes import free_port


def test_a_free_port_is_none_that_the_kernel_gives_away_and_nothing_listens_there() -> None:
    first, last = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    ports = {free_port() for _ in range(50)}
    assert len(ports) > 40
    for port in ports:
        assert not first <= port <= last
        with socket.socket() as server:
            server.bind(("127.0.0.1", port))
            server.listen()
