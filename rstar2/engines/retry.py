"""Repeats requests to a server that does not answer, for as long as the user allows.

The retry policy of an evaluation. An engine makes a single attempt, and this module decides whether there is another;
the judge's client has waited by itself before a lost call comes here. A restarted server therefore costs a run nothing
but time: the turn that failed is requested again with the same seed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from rstar2.backoff import Backoff
from rstar2.errors import Failure, Unavailable
from rstar2.loop.engine import Engine, EngineError, EngineUnavailable, Generation, OnTokens, Sampling

T = TypeVar("T")

ATTEMPTS = 4
"""How often one request may fail while the server answers others."""
FIRST_ANSWER_S = 5.0
"""No request is sent later to a server that has never answered: most often its URL is wrong."""
TURN_TIMEOUT_S = 3600.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 15.0


class ServiceGone(Failure):
    """The engine or the judge did not answer for as long as the user allows."""


class RetryPolicy:
    """Decides, for all requests to one server, whether a failed one is sent again.

    The wait has one clock, which starts at the server's last answer, or with the request where that is later.
    Nothing is given up while a request sent earlier is under way: the server may be working on it. Messages name
    the server `service`; it may answer nobody for `wait_s` seconds, by `clock` and `sleep`.
    """

    def __init__(
        self,
        service: str,
        wait_s: float,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.trouble: str | None = None
        """Why the server does not answer at the moment; None while it does."""
        self._service = service
        self._wait_s = wait_s
        self._clock = clock
        self._sleep = sleep
        self._answers = 0
        self._last_answer = float("-inf")
        self._under_way: dict[object, float] = {}
        """When each attempt under way began."""

    async def call(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Make attempts until one succeeds; any error but `Unavailable` is passed on.

        Raises:
            Unavailable: this request keeps failing while the server answers others.
            ServiceGone: the server answers nobody.
        """
        began, answers_before, failures = self._clock(), self._answers, 0
        backoff = Backoff(_FIRST_PAUSE_S, _LONGEST_PAUSE_S, jitter=0.5)
        while True:
            attempt_began, key = self._clock(), object()
            self._under_way[key] = attempt_began
            try:
                result = await attempt()
            except Unavailable as error:
                failures += 1
                self.trouble = error.message
                others_answered = self._answers > answers_before
                longest_s = self._longest_pause(error, failures, began, attempt_began, others_answered)
            else:
                self.trouble = None
                self._answers += 1
                self._last_answer = self._clock()
                return result
            finally:
                del self._under_way[key]
            await self._sleep(min(backoff.next_s(), longest_s))

    def _longest_pause(
        self, error: Unavailable, failures: int, began: float, attempt_began: float, others_answered: bool
    ) -> float:
        """Seconds until the next attempt, at most; Unavailable or ServiceGone where there is to be none."""
        now = self._clock()
        if others_answered and (failures >= ATTEMPTS or now - began >= self._wait_s):
            raise error
        allowed_s = self._wait_s if self._answers else min(self._wait_s, FIRST_ANSWER_S)
        left_s = allowed_s - (now - max(began, self._last_answer))
        if left_s > 0:
            return left_s
        if others_answered or any(earlier < attempt_began for earlier in self._under_way.values()):
            return _LONGEST_PAUSE_S
        message = error.message
        if self._answers:
            message = f"the {self._service} has not answered for {self._wait_s:g} seconds: {message}"
        raise ServiceGone(message, error.hint) from error


class RetryingEngine:
    """An engine whose turns are requested again while it does not answer, for up to `wait_s` seconds.

    Each attempt at a turn may take `turn_timeout_s` wall-clock seconds.

    Raises:
        EngineError: from `generate`, when this turn fails while others do not, or part of it was shown.
        ServiceGone: from `generate`, when nobody is answered.
    """

    def __init__(self, engine: Engine, wait_s: float, turn_timeout_s: float = TURN_TIMEOUT_S) -> None:
        self.policy = RetryPolicy("engine", wait_s)
        self.tokens = 0
        """Tokens generated so far."""
        self._engine = engine
        self._turn_timeout_s = turn_timeout_s

    @property
    def name(self) -> str:
        return self._engine.name

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, on_tokens: OnTokens | None = None
    ) -> Generation:
        shown = False

        def show(token_ids: list[int]) -> None:
            nonlocal shown
            assert on_tokens is not None
            shown = True
            on_tokens(token_ids)

        async def attempt() -> Generation:
            try:
                async with asyncio.timeout(self._turn_timeout_s):
                    return await self._engine.generate(prompt_ids, sampling, show if on_tokens else None)
            except TimeoutError as error:
                late = f"{self.name} did not finish a turn within {self._turn_timeout_s:g} seconds"
                raise _final(EngineUnavailable(late), shown) from error
            except EngineUnavailable as error:
                raise _final(error, shown) from error

        generation = await self.policy.call(attempt)
        self.tokens += len(generation.token_ids)
        return generation

    async def aclose(self) -> None:
        await self._engine.aclose()


def _final(error: EngineUnavailable, shown: bool) -> EngineError:
    """The error of an attempt; once tokens were shown there is no other, which would show them twice."""
    if not shown:
        return error
    return EngineError(f"{error.message}, in the middle of a turn", "See the server's log, then try again.")
