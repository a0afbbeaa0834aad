"""Waiting, with a bound, for an engine or a judge that went away.

A restarted server costs a run nothing but time: the turn or the tool call that failed is asked for again,
with the same seed, and the rollout never knows. Two bounds end the waiting. A service that answers nobody for
`wait_s` seconds ends the run. A call that fails again and again while the service answers others is given up
alone.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from rstar2.agent import ToolRunner
from rstar2.engines.base import Engine, EngineError, Generation, OnTokens, Sampling
from rstar2.errors import Failure
from rstar2.trace import ToolCall

T = TypeVar("T")

TRIES = 4
"""How often one call may fail while the service answers others."""
_LONGEST_PAUSE_S = 15.0


class ServiceGone(Failure):
    """The engine or the judge stayed away for longer than the run may wait."""


@dataclass(frozen=True)
class Trouble:
    """One failed try."""

    error: EngineError


class Patience:
    """What is known about one service, shared by every call to it.

    Args:
        what: its name in messages.
        wait_s: seconds it may answer nobody. Nothing is given up while a try from before the trouble is still
            under way: the service may be at work on it.
    """

    def __init__(self, what: str, wait_s: float) -> None:
        self.trouble: str | None = None
        """What is wrong at the moment; None while it answers."""
        self._what = what
        self._wait_s = wait_s
        self._down_since: float | None = None
        self._answers = 0
        self._under_way: dict[object, float] = {}
        """When each try under way began."""

    async def persist(self, attempt: Callable[[], Awaitable[T | Trouble]]) -> T:
        """Try until it works.

        Raises:
            EngineError: this call fails while the service answers others.
            ServiceGone: the service answers nobody.
        """
        failures, answers_before = 0, self._answers
        while True:
            result = await self._try(attempt)
            if not isinstance(result, Trouble):
                self.trouble, self._down_since = None, None
                self._answers += 1
                return result
            failures += 1
            self._judge(result.error, failures, self._answers > answers_before)
            await asyncio.sleep(min(_LONGEST_PAUSE_S, 0.25 * 2**failures) * random.uniform(0.5, 1.0))

    async def _try(self, attempt: Callable[[], Awaitable[T | Trouble]]) -> T | Trouble:
        key = object()
        self._under_way[key] = time.monotonic()
        try:
            return await attempt()
        finally:
            del self._under_way[key]

    def _judge(self, error: EngineError, failures: int, answers_others: bool) -> None:
        now = time.monotonic()
        self.trouble = error.message
        if self._down_since is None:
            self._down_since = now
        if failures < TRIES:
            return
        if answers_others:
            raise error
        if any(began < self._down_since for began in self._under_way.values()):
            return
        if self._answers == 0:
            raise ServiceGone(f"the {self._what} does not answer: {error.message}", error.hint)
        if now - self._down_since >= self._wait_s:
            raise ServiceGone(
                f"the {self._what} has not answered for {self._wait_s:g} seconds: {error.message}",
                "Every finished sample is kept; start the same command again when it is back.",
            )


class PatientEngine:
    """An engine whose turns are asked for again, and counted."""

    def __init__(self, engine: Engine, wait_s: float, turn_timeout_s: float) -> None:
        self.patience = Patience("engine", wait_s)
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
        async def once() -> Generation | Trouble:
            try:
                async with asyncio.timeout(self._turn_timeout_s):
                    return await self._engine.generate(prompt_ids, sampling, on_tokens)
            except EngineError as error:
                return Trouble(error)
            except TimeoutError:
                return Trouble(EngineError(f"a turn took longer than {self._turn_timeout_s:g} seconds"))

        said = await self.patience.persist(once)
        self.tokens += len(said.token_ids)
        return said

    async def aclose(self) -> None:
        await self._engine.aclose()


class PatientTools:
    """A tool runner whose lost calls are run again, and counted.

    A call that stays lost while the judge answers others goes to the model as lost.
    """

    def __init__(self, tools: ToolRunner, wait_s: float) -> None:
        self.patience = Patience("judge", wait_s)
        self.calls = 0
        """Calls that came back so far."""
        self._tools = tools

    async def run(self, name: str, arguments: dict[str, Any]) -> ToolCall:
        lost: ToolCall | None = None

        async def once() -> ToolCall | Trouble:
            nonlocal lost
            call = await self._tools.run(name, arguments)
            if call.status != "lost":
                return call
            lost = call
            return Trouble(EngineError(call.output))

        try:
            call = await self.patience.persist(once)
        except EngineError:
            assert lost is not None
            call = lost
        self.calls += 1
        return call
