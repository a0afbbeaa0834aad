"""Adapts the number of requests that a service is sent at once to the rate that it allows.

The rule is that of TCP: a refusal halves the number, and answers raise it again slowly. All requests to the service
share it, and all of them rest while the service asks for a pause.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable


class FlowControl:
    """How many requests to one service may be under way, and from when on.

    There is no limit before the service first refuses a request for its rate.

    Args:
        clock: returns the time in seconds.
        sleep: waits for a number of seconds.
    """

    def __init__(self, clock: Callable[[], float], sleep: Callable[[float], Awaitable[None]]) -> None:
        self.limit = float("inf")
        """Requests that may be under way at once, at least 1."""
        self.paused_s = 0.0
        """Seconds for which all requests were held back so far, in sum."""
        self._clock = clock
        self._sleep = sleep
        self._under_way = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._resumes_at = float("-inf")
        self.round = 0
        """Counts reductions of the limit. Refusals of requests of an earlier round do not reduce it again."""

    async def enter(self) -> int:
        """Wait until one more request may be sent. Returns its round, for `refused`; afterwards call `leave`.

        Requests are sent in the order in which they arrive here.
        """
        if self._waiting or self._under_way + 1 > self.limit:
            turn = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    self.leave()
                raise
        else:
            self._under_way += 1
        try:
            while (pause_s := self._resumes_at - self._clock()) > 0:
                await self._sleep(pause_s)
        except asyncio.CancelledError:
            self.leave()
            raise
        return self.round

    def leave(self) -> None:
        """Note that a request that had entered has ended, with whatever result."""
        self._under_way -= 1
        self._admit()

    def refused(self, began_in: int, pause_s: float) -> None:
        """Note that the service refused a request of a round for its rate, and that nothing is sent for `pause_s`."""
        now = self._clock()
        if now + pause_s > self._resumes_at:
            self.paused_s += now + pause_s - max(now, self._resumes_at)
            self._resumes_at = now + pause_s
        if began_in == self.round:
            self.round += 1
            self.limit = max(1.0, min(self.limit, self._under_way) / 2)

    @property
    def pauses(self) -> bool:
        """Whether all requests are held back at the moment."""
        return self._resumes_at > self._clock()

    def answered(self) -> None:
        """Note that the service answered a request: as many answers as the limit raise the limit by one."""
        self.limit += 1 / self.limit
        self._admit()

    def _admit(self) -> None:
        while self._waiting and self._under_way + 1 <= self.limit:
            turn = self._waiting.popleft()
            if not turn.done():
                self._under_way += 1
                turn.set_result(None)
