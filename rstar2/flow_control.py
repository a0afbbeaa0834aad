"""Adapts the number of requests that a service is sent to the rate that it allows.

The rule for refusals is that of TCP: a refusal halves the number of requests under way, and answers raise it again
slowly. All requests to the service share it, and all of them rest while the service asks for a pause.

Many services also say in each answer how many more requests they take until a moment. If that is not much more than
what is under way, the requests are spread over the time until then, so that none needs to be refused. The rule fits
both kinds of limits. One that counts requests in fixed windows is used up evenly. One that is refilled all the time
settles where requests are sent as fast as it is refilled.
"""

from __future__ import annotations

import asyncio
import itertools
import math
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

_PLENTY = 2
"""Requests are not spread while the service takes at least this many times those under way."""
_LONGEST_WINDOW_S = 90.0
"""Limits of a minute are kept to before they are reached. Longer ones, such as those of a day, are used up instead: if
nothing is left of one, the service refuses a request and says so."""
_LOOK_AGAIN_S = 1.0
"""Seconds after which a request that waits for its time looks whether that is earlier now."""


@dataclass(frozen=True)
class Allowance:
    """What a service says of a limit: it takes `requests` more within the next `window_s` seconds."""

    requests: float
    window_s: float


class FlowControl:
    """How many requests to one service may be under way, and from when on.

    There is no limit before the service first refuses a request for its rate, or says how many more it takes.

    Args:
        clock: returns the time in seconds.
        sleep: waits for a number of seconds.
    """

    def __init__(self, clock: Callable[[], float], sleep: Callable[[float], Awaitable[None]]) -> None:
        self.limit = float("inf")
        """Requests that may be under way at once, at least 1."""
        self.paused_s = 0.0
        """Seconds for which all requests were held back so far because some were refused, in sum."""
        self.spread_s = 0.0
        """Seconds for which requests were held back so far so that none is refused, in sum."""
        self.round = 0
        """Counts reductions of the limit. Refusals of requests of an earlier round do not reduce it again."""
        self._clock = clock
        self._sleep = sleep
        self._under_way = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._resumes_at = float("-inf")
        self._interval_s = 0.0
        """Seconds between two requests, until the time of `_spread_until`."""
        self._spread_until = float("-inf")
        self._sent: deque[float] = deque()
        """When requests were sent, of the last `_LONGEST_WINDOW_S` seconds."""

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
            await self._wait_for_its_time()
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

    def announced(self, allowances: Iterable[Allowance], age_s: float = 0.0) -> None:
        """Note what the service says of its limits, which replaces what it said before.

        It said so of the moment at which it got a request, `age_s` seconds ago. What was sent since is not counted yet.
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
        """Whether all requests are held back at the moment because some were refused."""
        return self._resumes_at > self._clock()

    def answered(self) -> None:
        """Note that the service answered a request: as many answers as the limit raise the limit by one."""
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
