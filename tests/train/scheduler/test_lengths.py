"""Tests of the model of rollout lengths."""

from __future__ import annotations

import random

import numpy as np

from rstar2.train.scheduler.lengths import HORIZONS, LengthModel


def test_nothing_is_known_until_those_that_started_first_have_ended() -> None:
    lengths = LengthModel()
    numbers = [lengths.started() for _ in range(2048)]
    for number in numbers[100:]:
        lengths.ended(number, 0.1)
    assert lengths.lasting(0.0) is None
    for number in numbers[:100]:
        lengths.ended(number, 0.9)
    remaining = lengths.lasting(0.0)
    assert remaining is not None
    assert remaining[0] == 1.0
    np.testing.assert_allclose(remaining[3], 0.05, atol=0.01)
    assert remaining[-1] == 0.0


def test_short_ones_that_end_first_do_not_mislead() -> None:
    """1,000 rollouts of 50 ticks run at the same time. The rollouts with length 0.1 end after about a tenth of the time
    of the others."""
    draw = random.Random(1)
    lengths = LengthModel()
    running: list[tuple[int, int, float]] = []
    for tick in range(600):
        while len(running) < 400:
            share = draw.choice([0.1, 0.9])
            running.append((tick + int(100 * share), lengths.started(), share))
        for ends_at, number, share in running:
            if ends_at == tick:
                lengths.ended(number, share)
        running = [each for each in running if each[0] > tick]
        remaining = lengths.lasting(0.0)
        if remaining is not None:
            assert 0.42 < remaining[8] < 0.6, tick
    assert remaining is not None


def test_who_has_lasted_long_is_expected_to_last() -> None:
    lengths = LengthModel()
    for number in range(4000):
        lengths.ended(lengths.started(), 0.2 if number % 4 else 0.95)
    young, old = lengths.lasting(0.0), lengths.lasting(0.5)
    assert young is not None
    assert old is not None
    assert young[8] < 0.3
    assert old[4] == 1.0


def test_beyond_what_was_seen_the_full_length_is_expected() -> None:
    lengths = LengthModel()
    for _ in range(1000):
        lengths.ended(lengths.started(), 0.3)
    beyond = lengths.lasting(0.6)
    assert beyond is not None
    np.testing.assert_array_equal(beyond, np.ones(HORIZONS))


def test_what_left_the_window_counts_no_longer() -> None:
    lengths = LengthModel(window=1000)
    stuck = lengths.started()
    for share in (0.9, 0.1):
        for _ in range(2000):
            lengths.ended(lengths.started(), share)
    lengths.ended(stuck, 1.0)
    remaining = lengths.lasting(0.0)
    assert remaining is not None
    assert remaining[4] == 0.0
    assert len(lengths._ends) == 1000
    assert lengths._counts.sum() == lengths._counted
