"""Samples a benchmark with the agent loop and its tools, and grades the final answer against the gold answer."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import numpy as np

from rstar2.data.problem import Problem
from rstar2.engines.pool import EnginePool
from rstar2.errors import Failure, Unavailable
from rstar2.eval.final_answer import benchmark_part, part_to_grade
from rstar2.eval.grader import Verdict, extract_answer
from rstar2.eval.settings import EvalSettings, sample_seed
from rstar2.loop.agent import Limits, ToolRunner, Tools, rollout
from rstar2.loop.engine import Engine, Sampling
from rstar2.loop.trace import ToolCall, Trace
from rstar2.loop.turns.codec import ChatCodec
from rstar2.plugins import failures_named
from rstar2.retry import RetryPolicy


class Grader(Protocol):
    """Compares a model's final turn with the gold answer, as `rstar2.eval.grader.GraderPool` does."""

    async def agrade(self, gold: str | None, pred: str | None) -> Verdict: ...


class RetryingTools:
    """Tools that count all calls and retry lost calls. A call is lost if the judge returned no result for it.

    If the judge answers other calls but all retries of a call are lost, the model is told that the call was lost. If
    the judge answers no calls at all, `run` raises ServiceGone.
    """

    def __init__(self, tools: Tools, retries: RetryPolicy) -> None:
        self.calls = 0
        """Number of calls finished so far."""
        self._tools = tools
        self._judge = retries.service("judge")

    @contextlib.asynccontextmanager
    async def opened(self) -> AsyncIterator[ToolRunner]:
        async with self._tools.opened() as tools:
            yield _RetryingRunner(tools, self)

    async def run(self, tools: ToolRunner, name: str, arguments: dict[str, Any]) -> ToolCall:
        """Run a call with the tools of one rollout."""

        async def attempt() -> ToolCall:
            call = await tools.run(name, arguments)
            if call.status == "lost":
                raise _LostCall(call)
            return call

        try:
            call = await self._judge.call(attempt)
        except _LostCall as lost:
            call = lost.call
        self.calls += 1
        return call


class _RetryingRunner:
    """The tools of one rollout."""

    def __init__(self, tools: ToolRunner, shared: RetryingTools) -> None:
        self._tools = tools
        self._shared = shared

    async def run(self, name: str, arguments: dict[str, Any]) -> ToolCall:
        return await self._shared.run(self._tools, name, arguments)


class _LostCall(Unavailable):
    """The judge returned no result for a call."""

    def __init__(self, call: ToolCall) -> None:
        super().__init__(call.output)
        self.call = call


@dataclass(frozen=True)
class Agent:
    """The objects that are needed to run the agent loop and to grade its answers."""

    engines: EnginePool
    tools: RetryingTools
    codec: ChatCodec
    grader: Grader


Correct = Callable[[Problem, str], bool]
"""A benchmark's own function, which decides whether an answer to a problem is correct."""


class AgentMethod:
    """Runs the agent loop on each problem. The grader, or the benchmark's own function, decides the verdict.

    The mathematics sets are measured with this method.
    """

    decides: Mapping[str, Any] = {}

    def __init__(self, agent: Agent, settings: EvalSettings, correct: Correct | None = None) -> None:
        self.settings = settings
        self._agent = agent
        self._correct = correct
        if correct is not None:
            self.decides = {"graded_by": function_name(correct)}

    def question_and_gold(self, problem: Problem, sample: int) -> tuple[str, str]:
        """Returns the question that the model gets in one sample, and the gold answer to it."""
        return problem.problem, problem.answer

    async def sample(self, problem: Problem, sample: int) -> Trace:
        return await self._agent.engines.run(lambda engine: self._rollout(engine, problem, sample))

    async def _rollout(self, engine: Engine, problem: Problem, sample: int) -> Trace:
        agent, settings = self._agent, self.settings
        text, gold = self.question_and_gold(problem, sample)
        async with agent.tools.opened() as tools:
            trace = await rollout(
                agent.codec.prompt(agent.codec.format.messages(text)),
                engine=engine,
                tools=tools,
                codec=agent.codec,
                limits=Limits(max_turns=settings.max_turns, max_tokens=settings.max_tokens),
                sampling=Sampling(
                    temperature=settings.temperature,
                    top_p=settings.top_p,
                    top_k=settings.top_k,
                    seed=sample_seed(settings.seed, problem.id, sample),
                ),
                problem_id=problem.id,
                sample=sample,
            )
        return trace.model_copy(update={"problem": text, "gold": gold})

    async def graded(self, trace: Trace, problem: Problem) -> Trace:
        """Returns the trace with two verdicts: one by the benchmark's reading rule, and one by the paper's reading
        rule."""
        part, read_by = benchmark_part(trace)
        verdict = await self.verdict(trace, problem, part)
        paper = part_to_grade(trace, "paper")
        correct = verdict.correct
        if extract_answer(paper) != verdict.extracted:
            correct = bool(paper) and (await self.verdict(trace, problem, paper)).correct
        update = {**asdict(verdict), "read_by": read_by, "paper_correct": correct and bool(paper)}
        return trace.model_copy(update=update)

    async def verdict(self, trace: Trace, problem: Problem, part: str) -> Verdict:
        """Returns the verdict on `part`, the part of the final turn that contains the answer."""
        if self._correct is None:
            return await self._agent.grader.agrade(trace.gold, part)
        answer = extract_answer(part)
        if answer is None:
            return Verdict("unparsed", None, "no answer")
        rule = function_name(self._correct)
        with failures_named(rule, "the benchmark's function"):
            returned: Any = await asyncio.to_thread(self._correct, problem, answer)
        if not isinstance(returned, bool | np.bool_):
            raise Failure(
                f"the benchmark's function {rule} returned {returned!r:.200}, not True or False",
                "Make the function return True or False.",
            )
        return Verdict("correct" if returned else "wrong", answer, rule)


def function_name(function: Callable[..., object]) -> str:
    """The name of a user's function as `module:function`."""
    return f"{function.__module__}:{getattr(function, '__qualname__', type(function).__name__)}"
