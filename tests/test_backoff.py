"""The waits before what failed is tried again."""

from __future__ import annotations

from rstar2.backoff import Backoff


def test_waits_double_up_to_the_longest_and_begin_again_once_it_worked() -> None:
    backoff = Backoff(0.5, 3.0)
    assert [backoff.next_s() for _ in range(5)] == [0.5, 1.0, 2.0, 3.0, 3.0]
    backoff.reset()
    assert backoff.next_s() == 0.5
    backoff.reset(at_once=True)
    assert [backoff.next_s() for _ in range(3)] == [0.0, 0.5, 1.0]


def test_jitter_shortens_a_wait_and_not_those_that_follow() -> None:
    backoff = Backoff(1.0, 4.0, jitter=0.5)
    waits = [backoff.next_s() for _ in range(3)]
    assert all(0.5 <= wait / longest <= 1.0 for wait, longest in zip(waits, (1.0, 2.0, 4.0), strict=True))
    assert len({Backoff(1.0, 4.0, jitter=0.5).next_s() for _ in range(20)}) > 1
