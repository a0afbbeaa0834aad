"""Who is called dead."""

from __future__ import annotations

from rstar2.judge.queue.liveness import LivenessMonitor


def test_a_heartbeat_that_stands_still_is_a_death_and_one_that_goes_on_is_not() -> None:
    watch = LivenessMonitor()
    found = [watch.look({"still": 7, "lives": second}, 100.0 + second) for second in range(6)]
    assert found == [[], [], [], [], ["still"], ["still"]]


def test_nobody_is_dead_for_what_was_not_seen() -> None:
    watch = LivenessMonitor()
    for second in range(3):
        assert watch.look({"a": 1}, 100.0 + second) == []
    assert watch.look({"a": 1}, 110.0) == []
    assert watch.look({"a": 1}, 111.0) == []


def test_a_worker_that_comes_back_to_life_has_to_die_anew() -> None:
    watch = LivenessMonitor()
    beats = [1, 1, 1, 1, 2, 2, 2, 2]
    assert not any(watch.look({"a": beat}, 100.0 + second) for second, beat in enumerate(beats))
