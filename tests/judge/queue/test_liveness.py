"""Who is called dead."""

from __future__ import annotations

from rstar2.judge.queue.liveness import LivenessMonitor


def test_a_worker_is_dead_when_its_heartbeat_stops_changing() -> None:
    monitor = LivenessMonitor()
    found = [monitor.dead_workers({"still": 7, "lives": second}, 100.0 + second) for second in range(6)]
    assert found == [[], [], [], [], ["still"], ["still"]]


def test_nobody_is_dead_for_what_was_not_seen() -> None:
    monitor = LivenessMonitor()
    for second in range(3):
        assert monitor.dead_workers({"a": 1}, 100.0 + second) == []
    assert monitor.dead_workers({"a": 1}, 110.0) == []
    assert monitor.dead_workers({"a": 1}, 111.0) == []


def test_a_worker_that_comes_back_to_life_has_to_die_anew() -> None:
    monitor = LivenessMonitor()
    beats = [1, 1, 1, 1, 2, 2, 2, 2]
    assert not any(monitor.dead_workers({"a": beat}, 100.0 + second) for second, beat in enumerate(beats))
