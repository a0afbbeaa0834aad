"""Adapts the number of requests in flight to the rate that a service allows.

The rule is the same as in TCP's congestion control. If the service refuses a request because of its rate limit, only
half as many requests may be in flight. The number of requests that may be in flight grows a little with each answer.
This number is a limit for all requests to the service together, and all requests pause if the service asks for a pause.

Many services also announce in each answer how many more requests they accept, and until when. If the announced number
is not much larger than the number of requests in flight, the next requests are spread over the announced time, so that
none is refused. If a limit counts requests in fixed windows, spreading the requests uses it up evenly. If a limit is
refilled continuously, the rate of requests becomes the rate of the refill.
"""

from __future__ import annotations

import asyncio
import itertools
import math
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

_PLENTY = 2
"""Requests are not spread if the service accepts at least this many further requests for each request in flight.
"""
_LONGEST_WINDOW_S = 90.0
"""Requests are spread only for limits with a window of at most this many seconds. Requests are not spread for a limit
with a longer window, such as a day: when such a limit is used up, the service refuses a request.
"""
_LOOK_AGAIN_S = 1.0
"""Seconds after which a waiting request checks whether it may be sent earlier than expected."""


@dataclass(frozen=True)
class Allowance:
    """What is left of an announced limit: the service accepts `requests` more requests in the next `window_s`
    seconds.
    """

    requests: float
    window_s: float


class FlowControl:
    """Decides how many requests to one service may be in flight, and when the next one may be sent.

    There is no limit before the service announces a limit, or refuses a request because of its rate limit.

    Args:
        clock: returns the time in seconds.
        sleep: waits for a number of seconds.
    """

    def __init__(self, clock: Callable[[], float], sleep: Callable[[float], Awaitable[None]]) -> None:
        self.limit = float("inf")
        """The number of requests that may be in flight, at least 1."""
        self.paused_s = 0.0
        """Total seconds for which all requests were paused after some requests had been refused."""
        self.spread_s = 0.0
        """Total seconds for which requests were delayed so that none is refused."""
        self.round = 0
        """Number of times that the limit has been reduced. A new round begins with each reduction. If a refused request
        began in an earlier round, the limit is not reduced again.
        """
        self._clock = clock
        self._sleep = sleep
        self._under_way = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._resumes_at = float("-inf")
        self._interval_s = 0.0
        """Seconds between two requests. Requests keep this interval until the time `_spread_until`."""
        self._spread_until = float("-inf")
        self._sent: deque[float] = deque()
        """Times of the requests that were sent in the last `_LONGEST_WINDOW_S` seconds."""

    async def enter(self) -> int:
        """Wait until one more request may be sent. Requests are sent in the order in which `enter` was called. The
        caller calls `leave` after the request.

        Returns the request's round, which is an argument of `refused`.
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
            await self._wait_for_its_time()
        except asyncio.CancelledError:
            self.leave()
            raise
        return self.round

    def leave(self) -> None:
        """Record that a request that `enter` admitted has ended, with or without success."""
        self._under_way -= 1
        self._admit()

    def refused(self, began_in: int, pause_s: float) -> None:
        """Record that the service refused a request because of its rate limit. The request began in the round
        `began_in`.

        All requests to the service pause for `pause_s` seconds.
        """
        now = self._clock()
        if now + pause_s > self._resumes_at:
            self.paused_s += now + pause_s - max(now, self._resumes_at)
            self._resumes_at = now + pause_s
        if began_in == self.round:
            self.round += 1
            self.limit = max(1.0, min(self.limit, self._under_way) / 2)

    def announced(self, allowances: Iterable[Allowance], age_s: float = 0.0) -> None:
        """Record the limits that the service announced. The new limits replace all limits that the service announced
        before.

        The service determined these limits when it received a request, `age_s` seconds ago. The requests that were sent
        in these `age_s` seconds are subtracted from the limits.
        """
        now = self._clock()
        since = sum(1 for _ in itertools.takewhile(lambda sent: sent > now - age_s, reversed(self._sent)))
        self._interval_s, self._spread_until = 0.0, float("-inf")
        for allowance in allowances:
            left, left_s = max(allowance.requests - since, 0.0), allowance.window_s - age_s
            if allowance.window_s > _LONGEST_WINDOW_S or left >= _PLENTY * self._under_way:
                continue
            interval_s = left_s / left if left else math.inf
            if left_s > 0 and interval_s > self._interval_s:
                self._interval_s, self._spread_until = interval_s, now + left_s

    @property
    def pauses(self) -> bool:
        """Whether all requests are paused at the moment because some requests were refused."""
        return self._resumes_at > self._clock()

    def answered(self) -> None:
        """Record that the service answered a request. A limit of n grows to about n + 1 after n answers."""
        self.limit += 1 / self.limit
        self._admit()

    async def _wait_for_its_time(self) -> None:
        arrived, spread = self._clock(), False
        while True:
            now, last_sent = self._clock(), self._sent[-1] if self._sent else float("-inf")
            spread_s = min(last_sent + self._interval_s, self._spread_until) - now
            wait_s = max(self._resumes_at - now, spread_s)
            if wait_s <= 0:
                break
            spread = spread or spread_s > self._resumes_at - now
            await self._sleep(min(wait_s, _LOOK_AGAIN_S))
        if spread:
            self.spread_s += now - max(last_sent, arrived)
        self._sent.append(now)
        while self._sent[0] < now - _LONGEST_WINDOW_S:
            self._sent.popleft()

    def _admit(self) -> None:
        while self._waiting and self._under_way + 1 <= self.limit:
            turn = self._waiting.popleft()
            if not turn.done():
                self._under_way += 1
                turn.set_result(None)
