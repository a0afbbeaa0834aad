"""Measures a model on benchmarks: opens the model, the judge and the graders, runs, and obeys Ctrl-C.

The first Ctrl-C lets the samples in flight finish and starts no more; the second abandons them. Either way
every finished sample is kept.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rstar2.config import resolve
from rstar2.data import benchmarks as mathematics
from rstar2.data.benchmarks import fingerprint
from rstar2.data.problem import Problem
from rstar2.engines.models import ServerModel
from rstar2.engines.retry import RetryingEngine
from rstar2.errors import UserError, first_few
from rstar2.eval.benchmarks import NAMES as BENCHMARK_NAMES
from rstar2.eval.benchmarks import Benchmark, Given, JudgeModel, Resources, expanded, find
from rstar2.eval.grader import GraderPool
from rstar2.eval.grader.grading import gold_fault
from rstar2.eval.harnesses.environment import require
from rstar2.eval.methods.agent import Agent
from rstar2.eval.methods.chat import JUDGE_MODEL, ServerChat
from rstar2.eval.progress import Services, Writer
from rstar2.eval.retry import RetryingTools
from rstar2.eval.runner import EvalResult, Part, SamplesRefused, Unreadable, run_parts
from rstar2.eval.settings import EvalSettings, JudgeChoice
from rstar2.eval.stored import TRACES, SampleRecord
from rstar2.eval.target import Opened, ServedChat, Target, open_target, reach_judge_model, versions
from rstar2.eval.terminal.live import LiveView
from rstar2.judge.client import JudgeClient
from rstar2.judge.service.start import running_judge
from rstar2.loop.judge_check import PACKAGES, JudgeReport, check_judge
from rstar2.loop.toolbox import Toolbox
from rstar2.runs import Run, json_digest

_PUBLISHED = frozenset({*mathematics.NAMES, *BENCHMARK_NAMES})
_TAKEN = _PUBLISHED | {"analysis", "attempts", "memory"}
"""Names that mean a benchmark, or one of the run's own folders."""


@dataclass(frozen=True)
class Planned:
    """One benchmark of a plan."""

    benchmark: Benchmark
    problems: list[Problem]
    settings: EvalSettings
    as_published: bool
    """All of the published problems, for a real model: what the paper's number may stand beside."""
    unreadable: Unreadable


@dataclass(frozen=True)
class EvalPlan:
    """A model, the problems it is asked and how: everything that decides the result."""

    opened: Opened
    benchmarks: dict[str, Planned]
    """By the name in results and folders."""
    judge: JudgeChoice
    judge_model: JudgeModel | None
    given: Given
    record: SampleRecord = TRACES
    """What is kept of each sample."""
    judge_report: JudgeReport | None = None
    """Result of the programs that were run on the user's judge; None if the run starts its own or needs none."""
    notes: tuple[str, ...] = ()
    """What a user must know of the problems before they are sampled."""

    @property
    def config(self) -> dict[str, Any]:
        """What a run's config.json holds; a run resumed with another one is refused."""
        judged = {"judge_model": self.judge_model.name} if self.judge_model else {}
        return {
            "problems": {name: fingerprint(each.problems) for name, each in self.benchmarks.items()},
            "settings": {name: each.settings.protocol() for name, each in self.benchmarks.items()},
            "native_calls": self.given.native_calls,
            "model": self.opened.identity,
            **judged,
        }

    @property
    def folder(self) -> Path:
        """The run's folder where the user names none: the same one for the same plan."""
        model = str(self.opened.identity["name"]).rpartition("/")[2]
        return Path("runs") / "-".join(["eval", *self.benchmarks, model, json_digest(self.config, 8)])

    @property
    def base(self) -> EvalSettings:
        """Settings that are the same for every benchmark: how many at once, and how long to wait."""
        return next(iter(self.benchmarks.values())).settings


def prepare(
    target: Target,
    server: ServerModel | ServedChat | None,
    names: list[str],
    asked: Mapping[str, Any],
    judge: JudgeChoice,
    given: Given,
    judge_model: JudgeModel | None = None,
    limit: int | None = None,
    record: SampleRecord = TRACES,
) -> EvalPlan:
    """Check the judge, load the problems, and open the model; `server` is the target's, from `reach_server`.

    Args:
        names: of benchmarks or groups, or JSON-lines files.
        asked: settings that the user gave, over each benchmark's own.
        given: files for the benchmarks; one in place of the hub goes with one benchmark alone.
        limit: only the first so many problems of each.
        record: what is kept of each sample.

    Raises:
        UserError: the judge or the judge model does not answer, a harness is not set up, or something cannot be used.
    """
    names = expanded(names)
    if given.data is not None and len(names) > 1:
        raise UserError(
            "--data replaces the data of one benchmark, but several are given",
            "Give one benchmark, or the files themselves in place of benchmarks.",
        )
    found = {own: find(name) for own, name in zip(_names(names), names, strict=True)}
    agent = any(not benchmark.chat for benchmark in found.values())
    if judge.url is not None and agent:
        check_judge(judge.url, judge.token)
    for name, benchmark in found.items():
        _refuse_unusable(name, benchmark, target, judge_model)
    planned = {}
    notes: list[str] = []
    if judge_model is not None:
        wait_s = asked.get("wait_s", EvalSettings().wait_s)
        name = reach_judge_model(judge_model.url, judge_model.name, wait_s, judge_model.key)
        judge_model = replace(judge_model, name=name)
    for name, benchmark in found.items():
        settings = resolve(EvalSettings, {**benchmark.protocol, **asked}, [], "eval")
        problems = benchmark.load(given, settings)
        as_published = given.data is None and problems == problems[:limit] and not target.oracle
        unreadable = Unreadable()
        if name not in BENCHMARK_NAMES:
            published = given.data is None and name in mathematics.NAMES
            problems, unreadable, note = _readable(name, problems, published, limit)
            notes += [note] if note else []
        planned[name] = Planned(benchmark, problems[:limit], settings, as_published, unreadable)
    every = [problem for each in planned.values() for problem in each.problems]
    in_flight = next(iter(planned.values())).settings.in_flight
    opened = open_target(target, every, in_flight, server, agent)
    report = None
    if judge.url is not None and agent:
        assert opened.codec is not None
        report = check_judge(judge.url, judge.token, opened.codec.format, PACKAGES)
    return EvalPlan(opened, planned, judge, judge_model, given, record, report, tuple(notes))


def _readable(
    name: str, problems: list[Problem], published: bool, limit: int | None
) -> tuple[list[Problem], Unreadable, str]:
    """Finds the problems that no output can be graded correct against, up to the last problem that is sampled.

    A published set keeps them, since its numbers are over all of it. Raises UserError if all problems are unreadable.

    Returns:
        The problems to sample, the unreadable ones, and a sentence about these, empty if there are none.
    """
    sampled: list[Problem] = []
    unreadable: list[dict[str, str]] = []
    looked_at = 0
    for problem in problems:
        if len(sampled) == limit:
            break
        looked_at += 1
        if why := gold_fault(problem.answer):
            unreadable.append({"id": problem.id, "answer": problem.answer, "why": why})
        if published or not why:
            sampled.append(problem)
    if not unreadable:
        return sampled, Unreadable(), ""
    named = [f"{each['id']}: {each['answer']!r:.60} ({each['why']})" for each in unreadable]
    if len(unreadable) == len(problems):
        raise UserError(
            f"no output can be graded correct against any answer of {name}: {named[0]}",
            "Write the answers as values or LaTeX, such as 42 or \\frac{1}{2}.",
        )
    what = "count as wrong" if published else "are left out"
    of = f"{looked_at} problems" if looked_at == len(problems) else f"the first {looked_at} problems"
    note = (
        f"{name}: {len(unreadable)} of {of} {what}, as no output can be graded correct against their answer: "
    )
    return sampled, Unreadable(tuple(unreadable), not published), note + first_few(named)


def _refuse_unusable(name: str, benchmark: Benchmark, target: Target, judge_model: JudgeModel | None) -> None:
    if target.oracle and name in BENCHMARK_NAMES:
        raise UserError(
            f"--oracle has no answers for {name}", "It works for the mathematics sets only; give a model."
        )
    if benchmark.harness is not None:
        require(benchmark.harness, name)
    if benchmark.judged and judge_model is None:
        hint = "Give the URL of an OpenAI-compatible server that serves one: --judge-model-url URL."
        raise UserError(f"{name} is graded by a judge model, but none is given", hint)


def _names(benchmarks: list[str]) -> list[str]:
    """The names of benchmarks in results and folders: a file's is its stem, or `own-` and that where it is taken.

    No two may share a folder.
    """
    names = []
    for given in benchmarks:
        stem = given.rstrip("/").rpartition("/")[2].removesuffix(".jsonl")
        names.append(f"own-{stem}" if stem in _TAKEN and given not in _PUBLISHED else stem)
    for name in names:
        if names.count(name) > 1:
            raise UserError(f"{name} is named twice", "Name each benchmark once; rename one of the files.")
    return names


def measure(plan: EvalPlan, run: Run, view: LiveView) -> tuple[list[EvalResult], bool, SamplesRefused | None]:
    """Sample and grade every benchmark into `run.path / NAME`.

    Returns:
        The results so far, whether Ctrl-C left samples out, and what is to be raised once the results are shown, where
        a server refused some samples.

    Raises:
        KeyboardInterrupt: Ctrl-C twice.
        UserError, Failure: as of `rstar2.eval.runner.run_parts`.
    """
    agentic = any(not each.benchmark.chat for each in plan.benchmarks.values())
    with contextlib.ExitStack() as stack:
        judge = _judge(plan, run, stack) if agentic else None
        grader = stack.enter_context(GraderPool()) if agentic else None
        stack.enter_context(view)
        about: dict[str, Any] = {"model": plan.opened.identity, "versions": versions()}
        if plan.opened.left_to_server:
            about["left_to_server"] = plan.opened.left_to_server
        if judge is not None:
            about["judge"] = {"isolation": judge.isolation}
            if judge.isolation == "none":
                view.note("judge isolation is none: the model's programs can read what you can read")
        if plan.judge_report is not None and plan.judge_report.missing:
            about["judge"]["missing_packages"] = sorted(plan.judge_report.missing)
            view.note(f"programs on the judge cannot import {plan.judge_report.missing_text}")

        async def work() -> tuple[list[EvalResult], bool]:
            interrupt = _Interrupt(view)
            async with contextlib.AsyncExitStack() as opened:
                resources, services = await _resources(plan, run, judge, grader, opened)
                parts = {}
                for name, each in plan.benchmarks.items():
                    method = each.benchmark.open(resources, each.settings, plan.given)
                    entered = await opened.enter_async_context(method)
                    parts[name] = Part(
                        each.problems,
                        run.path / name,
                        entered,
                        each.benchmark.combined,
                        plan.record,
                        each.as_published,
                        each.unreadable,
                    )
                results = await run_parts(
                    parts, plan.base.in_flight, services, on_progress=view, stop=interrupt.stop, about=about
                )
            # Ctrl-C during the last samples leaves nothing out.
            return results, interrupt.asked and not all(result.complete for result in results)

        try:
            return *asyncio.run(work()), None
        except SamplesRefused as error:
            return error.results, False, error
        except asyncio.CancelledError:
            raise KeyboardInterrupt from None


@dataclass(frozen=True)
class _RunningJudge:
    """The judge that runs the model's programs."""

    url: str
    token: str | None
    isolation: str


def _judge(plan: EvalPlan, run: Run, stack: contextlib.ExitStack) -> _RunningJudge:
    judge, report = plan.judge, plan.judge_report
    if judge.url is not None and report is not None:
        return _RunningJudge(judge.url, judge.token, report.isolation or "unknown")
    started = stack.enter_context(
        running_judge(run.logs / "judge", workers=judge.workers, preload=judge.preload)
    )
    return _RunningJudge(started.url, started.token, str(started.isolation))


async def _resources(
    plan: EvalPlan,
    run: Run,
    judge: _RunningJudge | None,
    grader: GraderPool | None,
    stack: contextlib.AsyncExitStack,
) -> tuple[Resources, Services]:
    """What the benchmarks share, and what progress is read from."""
    base, opened = plan.base, plan.opened
    models: list[Writer] = []
    agent, tools, chat, judge_model = None, None, None, None
    if opened.engine is not None:
        await stack.enter_async_context(contextlib.aclosing(opened.engine))
    if judge is not None and grader is not None:
        assert opened.engine is not None
        assert opened.codec is not None
        client = await stack.enter_async_context(JudgeClient(judge.url, judge.token, wait_s=base.wait_s))
        engine = RetryingEngine(opened.engine, base.wait_s, base.turn_timeout_s)
        tools = RetryingTools(Toolbox(client, opened.codec.format), base.wait_s)
        agent = Agent(engine, tools, opened.codec, grader)
        models.append(engine)
    if any(each.benchmark.chat for each in plan.benchmarks.values()):
        chat = await stack.enter_async_context(contextlib.aclosing(opened.chat(base)))
        models.append(chat)
    if plan.judge_model is not None:
        asked = plan.judge_model
        waits = base.wait_s, base.turn_timeout_s
        server = ServerChat(asked.url, asked.name, *waits, JUDGE_MODEL, asked.key)
        judge_model = await stack.enter_async_context(contextlib.aclosing(server))
    return Resources(chat, agent, judge_model, run.logs, run.path), Services(
        tuple(models), tools, judge_model
    )


class _Interrupt:
    """Ctrl-C in two steps, for the task that makes it."""

    def __init__(self, view: LiveView) -> None:
        self.stop = asyncio.Event()
        self.asked = False
        self._view = view
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("there is no task to interrupt")
        self._task = task
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, self._on_signal)

    def _on_signal(self) -> None:
        progress = self._view.last
        if self.asked or (progress is not None and progress.trouble):
            # Nothing in flight can finish while a server is away.
            self._task.cancel()
            return
        self.asked = True
        self.stop.set()
        self._view.note("stopping after the samples in flight; press Ctrl-C again to abandon them")
