"""A simulated clock for retry policies, so that a slow machine cannot fail a test."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from rstar2.retry import RetryPolicy


class Clock:
    """A clock that advances only when something sleeps. Sleeping takes no real time."""

    def __init__(self) -> None:
        self.now = 0.0
        self._slept = asyncio.Condition()

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds
        async with self._slept:
            self._slept.notify_all()
        await asyncio.sleep(0)

    async def passes(self, moment: float) -> None:
        async with self._slept:
            await self._slept.wait_for(lambda: self.now > moment)


def policies_on(clock: Clock) -> Callable[..., RetryPolicy]:
    """Return a function that creates a retry policy on a simulated clock. Its first argument is the wait in seconds."""
    return lambda wait_s, *pauses: RetryPolicy(wait_s, *pauses, clock=clock, sleep=clock.sleep)
