"""`LivenessMonitor`: which workers count as dead."""

from __future__ import annotations

import json

import redis

from rstar2.judge.queue import tasks as queue
from rstar2.judge.queue.embedded_redis import EmbeddedRedis
from rstar2.judge.queue.liveness import LivenessMonitor, heartbeat


def test_a_worker_is_dead_when_its_heartbeat_stops_changing() -> None:
    monitor = LivenessMonitor()
    dead_by_second = [
        monitor.dead_workers({"still": 7, "lives": second}, 100.0 + second) for second in range(6)
    ]
    assert dead_by_second == [[], [], [], [], ["still"], ["still"]]


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


def test_the_age_of_a_heartbeat_is_the_time_since_it_changed() -> None:
    monitor = LivenessMonitor()
    assert monitor.age_s("a", 100.0) == 0.0
    for second, beat in enumerate([1, 2, 2, 2]):
        monitor.dead_workers({"a": beat}, 100.0 + second)
    assert monitor.age_s("a", 103.5) == 2.5


def test_a_heartbeat_has_the_time_of_redis(server: EmbeddedRedis) -> None:
    with redis.Redis.from_url(server.url, decode_responses=True) as client:
        client.execute_command(*heartbeat("w", {"isolation": "none", "beat": 3}))
        state = json.loads(client.hget(queue.WORKERS, "w"))
        assert state.pop("at") <= client.time()[0]
    assert state == {"isolation": "none", "beat": 3}
