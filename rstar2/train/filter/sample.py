"""Samples problems on all engines at once, and writes the verdict on each sample as it comes.

Every slot runs one rollout at a time, on the engine that then has the fewest; the rollout's turns stay there. An engine
that is gone is used no more, and its rollouts start again on the others, each from its own seed.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rstar2.data.problem import Problem
from rstar2.engines.retry import RetryingEngine, ServiceGone
from rstar2.errors import Failure
from rstar2.eval.grader import GraderPool
from rstar2.eval.grader.outcomes import missed
from rstar2.eval.retry import RetryingTools
from rstar2.eval.settings import EvalSettings, sample_seed
from rstar2.eval.verdicts import Tally, VerdictWord, VerdictWriter
from rstar2.loop.agent import Limits, Tools, rollout
from rstar2.loop.engine import Engine, EngineError, Generation, OnTokens, Sampling
from rstar2.loop.trace import Trace, TraceWriter
from rstar2.loop.turns.codec import ChatCodec
from rstar2.train.filter.progress import VERDICTS
from rstar2.train.recipe import RewardRule
from rstar2.train.reward import text_to_grade

TRACES = "traces.jsonl"
_TICK_S = 0.5
_OF_SEVERAL_S = 60.0
"""How long one of several engines may answer nobody before the others take over."""


@dataclass(frozen=True)
class FilterProgress:
    """How far the sampling is."""

    done: int
    """Samples with a verdict, those of earlier starts included."""
    correct: int
    resumed: int
    """Samples that earlier starts wrote."""


class _EngineGone(ServiceGone):
    """One engine answers no more; unlike the judge, it can be replaced."""


class _PooledEngine:
    """An engine of several, whose end is told apart from the judge's."""

    def __init__(self, engine: Engine, wait_s: float) -> None:
        self.rollouts = 0
        self._engine = RetryingEngine(engine, wait_s)

    @property
    def name(self) -> str:
        return self._engine.name

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, on_tokens: OnTokens | None = None
    ) -> Generation:
        try:
            return await self._engine.generate(prompt_ids, sampling, on_tokens)
        except ServiceGone as error:
            raise _EngineGone(error.message, error.hint) from error

    async def aclose(self) -> None:
        await self._engine.aclose()


class EnginePool:
    """Engines that hold the same model."""

    def __init__(self, engines: Sequence[Engine], wait_s: float) -> None:
        wait_s = min(wait_s, _OF_SEVERAL_S) if len(engines) > 1 else wait_s
        self._live = [_PooledEngine(engine, wait_s) for engine in engines]

    async def on_one(self, run: Callable[[Engine], Awaitable[Trace]]) -> Trace:
        """Run a rollout on the engine that has the fewest, and again on another where it is gone meanwhile."""
        while True:
            engine = min(self._live, key=lambda each: each.rollouts)
            engine.rollouts += 1
            try:
                return await run(engine)
            except _EngineGone:
                self._live = [each for each in self._live if each is not engine] or [engine]
                if self._live == [engine]:
                    raise
            finally:
                engine.rollouts -= 1


@dataclass(frozen=True)
class Sampler:
    """What the samples have in common."""

    engines: Sequence[Engine]
    codec: ChatCodec
    tools: Tools
    grader: GraderPool
    settings: EvalSettings
    reward: RewardRule
    keep_traces: bool = False


async def sample_problems(
    problems: Sequence[Problem], sampler: Sampler, out: Path, on_progress: Callable[[FilterProgress], None]
) -> Tally:
    """Give every sample of every problem a verdict, in `out / VERDICTS`; those that have one are not sampled again.

    A Failure where no engine or no judge answers any more, or the disk is full; what is written is kept.
    """
    settings = sampler.settings
    tally = Tally.of(out / VERDICTS)
    resumed = tally.counts.total() - tally.counts["error"]
    run = _Run(sampler, EnginePool(sampler.engines, settings.wait_s), tally)
    jobs = _jobs(problems, tally, settings.samples)
    slots = min(settings.in_flight, len(problems) * settings.samples)

    def tick() -> None:
        on_progress(FilterProgress(tally.counts.total(), tally.counts["correct"], resumed))

    try:
        with contextlib.ExitStack() as stack:
            verdicts = stack.enter_context(VerdictWriter(out / VERDICTS))
            traces = stack.enter_context(TraceWriter(out / TRACES)) if sampler.keep_traces else None
            async with _ticking(tick), asyncio.TaskGroup() as group:
                for _ in range(slots):
                    group.create_task(run.slot(jobs, verdicts, traces))
    except (ExceptionGroup, OSError) as error:
        cause = _first(error)
        if not isinstance(cause, OSError):
            raise cause from None
        raise Failure(
            f"cannot write {out / VERDICTS}: {cause.strerror or cause}",
            "Every verdict written so far is kept; make room and start the same command again.",
        ) from None
    return tally


def _jobs(problems: Sequence[Problem], tally: Tally, samples: int) -> Iterator[tuple[Problem, int]]:
    for sample in range(samples):
        for problem in problems:
            if not tally.has(problem.id, sample):
                yield problem, sample


class _Run:
    """The sampling of one start."""

    def __init__(self, sampler: Sampler, pool: EnginePool, tally: Tally) -> None:
        self._sampler = sampler
        self._pool = pool
        self._tally = tally
        self._tools = RetryingTools(sampler.tools, sampler.settings.wait_s)

    async def slot(
        self, jobs: Iterator[tuple[Problem, int]], verdicts: VerdictWriter, traces: TraceWriter | None
    ) -> None:
        """Sample one job after another, until there are none."""
        for problem, sample in jobs:
            try:
                trace = await self._pool.on_one(lambda engine: self._rollout(engine, problem, sample))  # noqa: B023
            except EngineError:
                verdict: VerdictWord = "error"
            else:
                verdict = await self._verdict(trace)
                if traces is not None:
                    traces.write(trace)
            verdicts.write(problem.id, sample, verdict)
            self._tally.add(problem.id, sample, verdict)

    async def _rollout(self, engine: Engine, problem: Problem, sample: int) -> Trace:
        sampler, settings = self._sampler, self._sampler.settings
        async with self._tools.opened() as tools:
            trace = await rollout(
                sampler.codec.prompt(sampler.codec.format.messages(problem.problem)),
                engine=engine,
                tools=tools,
                codec=sampler.codec,
                limits=Limits(settings.max_turns, settings.max_tokens),
                sampling=Sampling(settings.temperature, seed=sample_seed(settings.seed, problem.id, sample)),
                problem_id=problem.id,
                sample=sample,
            )
        return trace.model_copy(update={"problem": problem.problem, "gold": problem.answer})

    async def _verdict(self, trace: Trace) -> VerdictWord:
        """What training would make of the rollout; `error` if the judge or the grader could not decide it."""
        if trace.lost_calls:
            return "error"
        text = text_to_grade(trace, self._sampler.reward)
        found = await self._sampler.grader.agrade(trace.gold, text)
        return "error" if missed(found) in ("deadline", "fault", "invalid") else found.verdict


@contextlib.asynccontextmanager
async def _ticking(tick: Callable[[], None]) -> AsyncIterator[None]:
    async def repeat() -> None:
        while True:
            tick()
            await asyncio.sleep(_TICK_S)

    task = asyncio.create_task(repeat())
    try:
        yield
    finally:
        task.cancel()
        tick()


def _first(error: Exception) -> Exception:
    """The first plain exception of a group."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error
