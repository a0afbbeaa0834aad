"""Several engines of one model: the choice of a rollout's engine, and engines that stop answering."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from support.clock import Clock, policies_on

from rstar2.engines.pool import EnginePool
from rstar2.errors import Unavailable
from rstar2.loop.engine import Engine, EngineUnavailable, Generation, OnTokens, Sampling
from rstar2.retry import RetryPolicy, ServiceGone


class OneTokenEngine:
    """Generates one token, unless it is down."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.down = False
        self.request_count = 0

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, on_tokens: OnTokens | None = None
    ) -> Generation:
        self.request_count += 1
        if self.down:
            raise EngineUnavailable(f"{self.name} is away")
        return Generation([1], None, "stop")

    async def aclose(self) -> None:
        return


async def _turns(engine: Engine) -> str:
    for _ in range(3):
        await engine.generate([7], Sampling())
    return engine.name


@pytest.fixture
def retries() -> RetryPolicy:
    policy: RetryPolicy = policies_on(Clock())(300.0)
    return policy


async def test_rollouts_are_spread_and_all_turns_of_one_stay_on_its_engine(retries: RetryPolicy) -> None:
    engines = [OneTokenEngine("a"), OneTokenEngine("b")]
    pool = EnginePool(engines, retries)
    together = asyncio.Barrier(4)

    async def rollout(engine: Engine) -> str:
        await together.wait()
        return await _turns(engine)

    names = await asyncio.gather(*(pool.run(rollout) for _ in range(4)))
    assert sorted(names) == ["a", "a", "b", "b"]
    assert [engine.request_count for engine in engines] == [6, 6]
    assert pool.tokens == 12


async def test_an_engine_that_goes_away_is_used_no_more_and_waited_for_no_more(retries: RetryPolicy) -> None:
    engines = [OneTokenEngine("a"), OneTokenEngine("b")]
    pool = EnginePool(engines, retries)
    engines[0].down = True
    assert await asyncio.gather(*(pool.run(_turns) for _ in range(4))) == ["b"] * 4
    tries = engines[0].request_count
    assert await pool.run(_turns) == "b"
    assert engines[0].request_count == tries
    assert retries.trouble is None
    assert [each.service for each in retries.outages] == ["engine a"]
    engines[1].down = True
    with pytest.raises(ServiceGone, match="b is away"):
        await pool.run(_turns)


async def test_another_service_that_goes_away_costs_no_engine(retries: RetryPolicy) -> None:
    engines = [OneTokenEngine("a"), OneTokenEngine("b")]
    pool, judge = EnginePool(engines, retries), retries.service("judge")

    async def without_judge(engine: Engine) -> str:
        async def call() -> str:
            raise Unavailable("the judge is away")

        return await judge.call(call)

    with pytest.raises(ServiceGone, match="the judge is away"):
        await pool.run(without_judge)
    together = asyncio.Barrier(2)

    async def rollout(engine: Engine) -> str:
        await together.wait()
        return await _turns(engine)

    assert sorted(await asyncio.gather(pool.run(rollout), pool.run(rollout))) == ["a", "b"]
