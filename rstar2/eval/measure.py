"""Measures a model on benchmarks: opens the model, the judge and the graders, runs, and obeys Ctrl-C.

The first Ctrl-C lets the samples in flight finish and starts no more; the second abandons them. Either way
every finished sample is kept.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rstar2.data.benchmarks import fingerprint, load_benchmark
from rstar2.data.problem import Problem
from rstar2.engines.models import ServerModel
from rstar2.errors import Failure, UserError
from rstar2.eval.grader import GraderPool
from rstar2.eval.live import LiveView
from rstar2.eval.runner import EvalResult, evaluate
from rstar2.eval.settings import EvalSettings, JudgeChoice
from rstar2.eval.stored import TRACES, SampleRecord
from rstar2.eval.target import Opened, Target, open_target, versions
from rstar2.judge.client import JudgeClient, SyncJudgeClient
from rstar2.judge.service.start import running_judge
from rstar2.runs import Run, config_digest
from rstar2.toolbox import Toolbox


@dataclass(frozen=True)
class EvalPlan:
    """A model, the problems it is asked and how: everything that decides the result."""

    opened: Opened
    problems: dict[str, list[Problem]]
    """Of each benchmark, by its name in results and folders."""
    settings: EvalSettings
    judge: JudgeChoice
    record: SampleRecord = TRACES
    """What is kept of each sample."""

    @property
    def config(self) -> dict[str, Any]:
        """What a run's config.json holds; a run resumed with another one is refused."""
        return {
            "problems": {name: fingerprint(part) for name, part in self.problems.items()},
            "settings": self.settings.protocol(),
            "model": self.opened.identity,
        }

    @property
    def folder(self) -> Path:
        """The run's folder where the user names none: the same one for the same plan."""
        model = str(self.opened.identity["name"]).rpartition("/")[2]
        return Path("runs") / "-".join(["eval", *self.problems, model, config_digest(self.config)])


def prepare(
    target: Target,
    server: ServerModel | None,
    benchmarks: list[str],
    settings: EvalSettings,
    judge: JudgeChoice,
    data: Path | None = None,
    limit: int | None = None,
    record: SampleRecord = TRACES,
) -> EvalPlan:
    """Check the judge, load the problems, and open the model; `server` is the target's, from `reach_server`.

    `benchmarks` are names, or JSON-lines files; `data` stands in for the hub, for the one benchmark; `limit` takes only
    the first so many problems of each; `record` is what is kept of each sample. UserError where the judge does not
    answer, or something cannot be used.
    """
    if data is not None and len(benchmarks) > 1:
        raise UserError("--data stands in for one benchmark, not for several", "Name one, or the files.")
    names = _names(benchmarks)
    if judge.url is not None:
        _isolation(judge.url, judge.token)
    problems = {
        name: load_benchmark(benchmark, data, settings.seed)[:limit]
        for name, benchmark in zip(names, benchmarks, strict=True)
    }
    every = [problem for part in problems.values() for problem in part]
    opened = open_target(target, every, settings.in_flight, server)
    return EvalPlan(opened, problems, settings, judge, record)


def _names(benchmarks: list[str]) -> list[str]:
    """The names of benchmarks in results and folders: a file's is its stem; no two may share a folder."""
    names = [name.rstrip("/").rpartition("/")[2].removesuffix(".jsonl") for name in benchmarks]
    for name in names:
        if names.count(name) > 1:
            raise UserError(f"{name} is named twice", "Name each benchmark once; rename one of the files.")
    return names


def _isolation(url: str, token: str | None) -> str:
    """The isolation tier that a judge reports; a UserError where it does not answer."""
    try:
        with SyncJudgeClient(url, token) as client:
            return str(client.health().get("isolation", "unknown"))
    except Failure as error:
        raise UserError(error.message, error.hint) from error


def measure(plan: EvalPlan, run: Run, view: LiveView) -> tuple[list[EvalResult], bool]:
    """Sample and grade every benchmark into `run.path / NAME`. → the results so far, and whether Ctrl-C ended it.

    Raises:
        KeyboardInterrupt: Ctrl-C twice.
        UserError, Failure: as of `rstar2.eval.runner.evaluate`.
    """
    with contextlib.ExitStack() as stack:
        judge = plan.judge
        url, token = judge.url, judge.token
        if url is None:
            started = stack.enter_context(
                running_judge(run.logs / "judge", workers=judge.workers, preload=judge.preload)
            )
            url, token, isolation = started.url, started.token, str(started.isolation)
        else:
            isolation = _isolation(url, token)
        grader = stack.enter_context(GraderPool())
        stack.enter_context(view)
        if isolation == "none":
            view.note("judge isolation is none here: the model's programs can read what you can read")
        about = {"model": plan.opened.identity, "versions": versions(), "judge": {"isolation": isolation}}
        client = JudgeClient(url, token, wait_s=plan.settings.wait_s)

        async def work() -> tuple[list[EvalResult], bool]:
            interrupt = _Interrupt(view)
            opened = plan.opened
            async with client, contextlib.aclosing(opened.engine):
                results = await evaluate(
                    {name: (part, run.path / name) for name, part in plan.problems.items()},
                    engine=opened.engine,
                    codec=opened.codec,
                    tools=Toolbox(client, opened.codec.format),
                    grader=grader,
                    settings=plan.settings,
                    on_progress=view,
                    stop=interrupt.stop,
                    about=about,
                    record=plan.record,
                )
            return results, interrupt.asked

        try:
            return asyncio.run(work())
        except asyncio.CancelledError:
            raise KeyboardInterrupt from None


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
        self._view.note("stopping: the samples in flight are finished; Ctrl-C again abandons them")
