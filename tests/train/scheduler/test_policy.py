"""Tests of the rollout scheduler: it never overfills an engine, lets no session starve, and removes none too early."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rstar2.train.scheduler.engine import blocks
from rstar2.train.scheduler.metrics import Reading
from rstar2.train.scheduler.policy import Scheduler, SchedulerSettings

FULL_LENGTH = SchedulerSettings(in_flight=8, quiet_s=100.0, window=0)


@dataclass
class Log:
    """Records the scheduler's decisions in order."""

    placements: list[tuple[str, str]] = field(default_factory=list)
    refusals: dict[str, str] = field(default_factory=dict)

    def placed(self, session: str, engine: str) -> None:
        self.placements.append((session, engine))

    def refused(self, session: str, why: str) -> None:
        self.refusals[session] = why


def new_scheduler(
    capacities: dict[str, int | None], settings: SchedulerSettings = FULL_LENGTH
) -> tuple[Scheduler, Log]:
    log = Log()
    scheduler = Scheduler(log, settings)
    for name, capacity in capacities.items():
        scheduler.add_engine(name, capacity, 0.0)
    return scheduler, log


def test_a_session_waits_until_its_full_length_fits() -> None:
    scheduler, log = new_scheduler({"a": 320})
    for name in ("one", "two", "three"):
        scheduler.request(name, name, 16, 144, 0.0)
    assert log.placements == [("one", "a"), ("two", "a")]
    scheduler.turn_ended("one", 1.0)
    assert len(log.placements) == 2  # the session will send its next turn, so its KV cache stays
    scheduler.end("one", 40, 2.0)
    assert log.placements[2:] == [("three", "a")]


def test_each_goes_where_most_is_free_and_stays_there() -> None:
    scheduler, log = new_scheduler({"a": 640, "b": 320})
    for name in ("one", "two", "three"):
        scheduler.request(name, name, 16, 144, 0.0)
    assert log.placements == [("one", "a"), ("two", "a"), ("three", "b")]
    for name in ("one", "two", "three"):
        scheduler.turn_ended(name, 1.0)
        scheduler.request(name, name, 50, 110, 2.0)
    assert log.placements[3:] == [("one", "a"), ("two", "a"), ("three", "b")]


def test_a_long_prompt_is_not_passed_by_short_ones() -> None:
    scheduler, log = new_scheduler({"a": 320})
    scheduler.request("first", "first", 16, 144, 0.0)
    scheduler.request("long", "long", 200, 120, 1.0)
    for number in range(20):
        scheduler.request(f"short{number}", f"short{number}", 16, 16, 2.0)
    assert log.placements == [("first", "a")]
    scheduler.end("first", 20, 3.0)
    assert log.placements[1] == ("long", "a")


def test_the_rest_of_a_group_comes_before_later_groups() -> None:
    scheduler, log = new_scheduler({"a": 160})
    scheduler.request("g/0", "g", 16, 144, 0.0)
    scheduler.request("h/0", "h", 16, 144, 1.0)
    scheduler.request("g/1", "g", 16, 144, 2.0)
    scheduler.end("g/0", 20, 3.0)
    assert log.placements == [("g/0", "a"), ("g/1", "a")]


def test_a_groups_next_round_comes_after_the_rounds_that_other_groups_began_before() -> None:
    scheduler, log = new_scheduler({"a": 160})
    scheduler.request("g/0", "g", 16, 144, 0.0)
    scheduler.request("h/0", "h", 16, 144, 1.0)
    scheduler.end("g/0", 20, 2.0)
    scheduler.request("g/1", "g", 16, 144, 3.0)
    scheduler.request("h/1", "h", 16, 144, 4.0)
    scheduler.end("h/0", 20, 5.0)
    scheduler.end("h/1", 20, 6.0)
    assert [session for session, _ in log.placements] == ["g/0", "h/0", "h/1", "g/1"]


def test_one_larger_than_any_engine_is_refused_and_the_next_is_served() -> None:
    scheduler, log = new_scheduler({"a": 160, "b": 320})
    scheduler.request("huge", "huge", 300, 100, 0.0)
    scheduler.request("small", "small", 16, 16, 0.0)
    assert "400 tokens" in log.refusals["huge"]
    assert "320" in log.refusals["huge"]
    assert "hardware.tensor_parallel" in log.refusals["huge"]
    assert [name for name, _ in log.placements] == ["small"]
    assert "huge" not in scheduler.sessions


def test_sessions_of_a_dead_engine_continue_on_another_before_those_that_came_later() -> None:
    scheduler, log = new_scheduler({"a": 160, "b": 160})
    for name in ("one", "two", "three"):
        scheduler.request(name, name, 16, 144, 0.0)
    assert log.placements == [("one", "b"), ("two", "a")]
    scheduler.remove_engine("b", 1.0)
    # the session's rollout notices the loss, and requests an engine again
    scheduler.request("one", "one", 60, 100, 2.0)
    scheduler.end("two", 30, 3.0)
    assert log.placements[2:] == [("one", "a")]


def test_a_new_engine_takes_those_that_wait() -> None:
    scheduler, log = new_scheduler({})
    scheduler.request("one", "one", 16, 16, 0.0)
    assert log.placements == []
    scheduler.add_engine("a", None, 1.0)
    assert log.placements == [("one", "a")]


def test_where_the_cache_is_not_known_sessions_are_counted() -> None:
    scheduler, log = new_scheduler({"a": None})
    for number in range(20):
        scheduler.request(f"{number}", f"{number}", 16, 1 << 20, 0.0)
    assert len(log.placements) == FULL_LENGTH.in_flight


def test_a_session_moves_from_a_full_engine_to_an_empty_one_only_when_nobody_waits() -> None:
    for waiting in (False, True):
        scheduler, log = new_scheduler({"a": 160 * 6})
        for number in range(6 + waiting):
            scheduler.request(f"{number}", f"{number}", 16, 144, 0.0)
        scheduler.turn_ended("0", 1.0)
        scheduler.engines["b"] = new_scheduler({"b": 160 * 6})[0].engines["b"]
        scheduler.request("0", "0", 32, 128, 2.0)
        assert log.placements[-1] == ("0", "a" if waiting else "b")


def test_who_is_between_two_turns_chooses_anew_after_the_caches_were_emptied() -> None:
    scheduler, _ = new_scheduler({"a": 320})
    scheduler.request("busy", "busy", 16, 144, 0.0)
    scheduler.request("idle", "idle", 16, 144, 0.0)
    scheduler.turn_ended("idle", 1.0)
    assert scheduler.forget_places(2.0) == 1
    assert list(scheduler.engines["a"].sessions) == ["busy"]


def test_a_session_without_news_is_given_up_and_its_room_is_used() -> None:
    scheduler, log = new_scheduler({"a": 160})
    scheduler.request("gone", "gone", 16, 144, 0.0)
    scheduler.request("next", "next", 16, 144, 50.0)
    scheduler.tick(99.0)
    assert [name for name, _ in log.placements] == ["gone"]
    scheduler.tick(101.0)
    assert [name for name, _ in log.placements] == ["gone", "next"]
    assert list(scheduler.sessions) == ["next"]


def test_who_waits_while_nothing_moves_is_refused() -> None:
    scheduler, log = new_scheduler({})
    scheduler.request("one", "one", 16, 144, 0.0)
    scheduler.tick(101.0)
    assert "100 seconds" in log.refusals["one"]
    assert scheduler.sessions == {}


def test_it_remembers_any_number_of_conversations() -> None:
    scheduler, log = new_scheduler(
        {f"{number}": 1 << 30 for number in range(4)}, SchedulerSettings(in_flight=1 << 30)
    )
    for number in range(20_000):
        scheduler.request(f"{number}", f"{number}", 16, 144, 0.0)
    first = dict(log.placements)
    log.placements.clear()
    for number in range(20_000):
        scheduler.turn_ended(f"{number}", 1.0)
    for number in range(20_000):
        scheduler.request(f"{number}", f"{number}", 32, 128, 2.0)
    assert dict(log.placements) == first


def reading(used_share: float, preemptions: int = 0, capacity: int | None = None) -> Reading:
    return Reading(capacity, used_share, running=0, waiting=0, preemptions=preemptions)


def test_more_are_admitted_once_it_is_known_that_rollouts_are_short() -> None:
    counts = []
    for share in (1.0, 0.25):
        scheduler, log = new_scheduler({"a": 16_000}, SchedulerSettings(in_flight=1000))
        for _ in range(2000):
            scheduler.lengths.ended(scheduler.lengths.started(), share)
        for number in range(200):
            scheduler.request(f"{number}", f"{number}", 16, 784, 0.0)
        counts.append(len(log.placements))
    assert counts[0] == 20
    assert 40 <= counts[1] <= 70


def test_a_preemption_brings_back_full_lengths_and_a_full_cache_stops_admission() -> None:
    for metrics, expected in ((reading(0.1, 1), 20), (reading(0.95), 5), (reading(0.1), 40)):
        scheduler, log = new_scheduler({"a": 16_000}, SchedulerSettings(in_flight=1000))
        for _ in range(2000):
            scheduler.lengths.ended(scheduler.lengths.started(), 0.25)
        for number in range(5):
            scheduler.request(f"{number}", f"{number}", 16, 784, 0.0)
        scheduler.read("a", reading(0.0), 1.0)
        scheduler.read("a", metrics, 2.0)
        for number in range(5, 200):
            scheduler.request(f"{number}", f"{number}", 16, 784, 3.0)
        assert len(log.placements) == expected or (expected == 40 and len(log.placements) >= 40)


def test_the_capacity_is_what_the_engine_reports() -> None:
    scheduler, log = new_scheduler({"a": 160})
    scheduler.read("a", reading(0.0, capacity=480), 0.0)
    for number in range(5):
        scheduler.request(f"{number}", f"{number}", 16, 144, 1.0)
    assert len(log.placements) == 3


class World:
    """Simulates turns, ends of sessions and dying engines in any order, and checks the scheduler's state after each
    event."""

    def __init__(self, capacities: list[int], window: int) -> None:
        self.now = 0.0
        self.busy: dict[str, str] = {}
        self.idle: set[str] = set()
        self.waiting: set[str] = set()
        self.tokens: dict[str, tuple[int, int]] = {}
        self.refusals: list[str] = []
        self.sizes = capacities
        settings = SchedulerSettings(in_flight=4, window=window)
        self.scheduler = Scheduler(self, settings)
        for number, capacity in enumerate(capacities):
            self.scheduler.add_engine(f"{number}", capacity, 0.0)

    def placed(self, session: str, engine: str) -> None:
        assert session in self.waiting
        self.waiting.remove(session)
        self.busy[session] = engine

    def refused(self, session: str, why: str) -> None:
        self.waiting.remove(session)
        self.refusals.append(session)
        size = blocks(sum(self.tokens[session]))
        assert all(size > (books.capacity or 0) for books in self.scheduler.engines.values())

    def ask(self, name: str, group: str, tokens: int, more: int) -> None:
        self.waiting.add(name)
        self.idle.discard(name)
        self.tokens[name] = (tokens, more)
        self.scheduler.request(name, group, tokens, more, self.now)

    def end_turn(self, name: str) -> None:
        del self.busy[name]
        self.idle.add(name)
        self.scheduler.turn_ended(name, self.now)

    def end(self, name: str) -> None:
        self.idle.discard(name)
        self.waiting.discard(name)
        self.busy.pop(name, None)
        self.scheduler.end(name, sum(self.tokens[name]) - self.tokens[name][1] // 2, self.now)

    def kill(self, engine: str) -> None:
        lost_sessions = [name for name, session_engine in self.busy.items() if session_engine == engine]
        for name in lost_sessions:
            del self.busy[name]
            self.idle.add(name)
        self.scheduler.remove_engine(engine, self.now)

    def check(self) -> None:
        sessions_held = 0
        for books in self.scheduler.engines.values():
            assert books.capacity is not None
            assert sum(blocks(each.longest) for each in books.sessions.values()) <= books.capacity
            assert sum(each.busy for each in books.sessions.values()) == books._busy
            sessions_held += len(books.sessions)
        assert sessions_held + self.scheduler.waiting <= len(self.scheduler.sessions)
        assert self.scheduler.waiting == len(self.waiting)
        assert set(self.scheduler.sessions) == self.busy.keys() | self.idle | self.waiting

    def finish(self, draw: random.Random) -> None:
        """Runs every rollout to its end. At any time, at least one rollout can continue."""
        for _ in range(10_000):
            self.now += 1.0
            if self.busy:
                self.end_turn(draw.choice(sorted(self.busy)))
            elif self.idle:
                name = draw.choice(sorted(self.idle))
                if draw.random() < 0.5 or not self.scheduler.engines:
                    self.end(name)
                else:
                    tokens, more = self.tokens[name]
                    self.ask(name, name[0], tokens + more // 2, more - more // 2)
            else:
                break
            self.check()
        assert not self.busy
        assert not self.idle


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(64, 800), min_size=1, max_size=4),
    st.lists(
        st.tuples(st.sampled_from("abcde"), st.integers(1, 120), st.integers(1, 400)), min_size=1, max_size=40
    ),
    st.integers(0, 3),
    st.randoms(use_true_random=False),
)
def test_no_order_of_events_overfills_an_engine_starves_a_session_or_leaves_anything_behind(
    capacities: list[int], rollouts: list[tuple[str, int, int]], kills: int, draw: random.Random
) -> None:
    world = World(capacities, window=0)
    steps: list[Callable[[], None]] = [
        partial(world.ask, f"{group}{number}", group, tokens, more)
        for number, (group, tokens, more) in enumerate(rollouts)
    ]
    for _ in range(min(kills, len(capacities) - 1)):
        steps.insert(
            draw.randrange(len(steps)), lambda: world.kill(draw.choice(sorted(world.scheduler.engines)))
        )
    for step in steps:
        world.now += 1.0
        step()
        world.check()
        if world.busy and draw.random() < 0.4:
            world.end_turn(draw.choice(sorted(world.busy)))
        if world.idle and draw.random() < 0.4:
            world.end(draw.choice(sorted(world.idle)))
        world.check()
    world.finish(draw)
    assert not world.waiting
    assert world.scheduler.sessions == {}
    assert world.scheduler._groups == {}
    assert all(not books.sessions and books._full == 0 for books in world.scheduler.engines.values())


@pytest.mark.parametrize("window", [0, 1000])
def test_everyone_is_served_in_the_order_of_asking(window: int) -> None:
    world = World([800, 500], window)
    draw = random.Random(3)
    served: list[str] = []
    place = world.placed

    def placed(session: str, engine: str) -> None:
        served.append(session)
        place(session, engine)

    world.placed = placed  # type: ignore[method-assign]
    for number in range(600):
        world.ask(f"{number}", f"{number}", draw.randrange(1, 60), draw.randrange(1, 200))
    while world.busy:
        world.now += 1.0
        world.end(draw.choice(sorted(world.busy)))
    assert served == [f"{number}" for number in range(600)]
