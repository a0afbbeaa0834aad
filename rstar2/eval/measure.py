"""One start of a measurement: the judge, the graders and the engine brought together, and Ctrl-C obeyed.

The first Ctrl-C lets what is in flight finish and starts nothing more; the second leaves it. Either way every
finished sample is kept.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rstar2.data.problem import Problem
from rstar2.errors import Failure, UserError
from rstar2.eval.grader import GraderPool
from rstar2.eval.live import LiveView
from rstar2.eval.runner import EvalResult, EvalSettings, evaluate_all
from rstar2.eval.target import Opened, versions
from rstar2.judge.client import JudgeClient, SyncJudgeClient
from rstar2.judge.client.python_tool import PythonTool
from rstar2.judge.service.start import running_judge
from rstar2.runs import Run


@dataclass(frozen=True)
class JudgeChoice:
    """Where the model's programs run: a judge that is there, or one started for the run."""

    url: str | None = None
    token: str | None = None
    workers: int = 2
    """Programs at once, in a judge that is started."""


def check_judge(judge: JudgeChoice) -> None:
    """Ask a judge that should be there whether it is.

    Raises:
        UserError: it is not.
    """
    if judge.url is None:
        return
    try:
        with SyncJudgeClient(judge.url, judge.token) as client:
            client.health()
    except Failure as error:
        raise UserError(error.message, error.hint) from error


def _isolation(url: str, token: str | None) -> str:
    """The tier a judge says it keeps."""
    with SyncJudgeClient(url, token) as client:
        return str(client.health().get("isolation", "unknown"))


@dataclass(frozen=True)
class Measured:
    """What a start came to."""

    results: list[EvalResult]
    interrupted: bool
    """Whether Ctrl-C ended it; the results are then those so far."""


def measure(
    opened: Opened,
    problems: dict[str, list[Problem]],
    settings: EvalSettings,
    run: Run,
    judge: JudgeChoice,
    view: LiveView,
) -> Measured:
    """Sample and grade every benchmark into `run.path / NAME`.

    Raises:
        KeyboardInterrupt: Ctrl-C twice.
        UserError, Failure: see `rstar2.eval.runner.evaluate_all`.
    """
    with contextlib.ExitStack() as stack:
        url, token = judge.url, judge.token
        if url is None:
            started = stack.enter_context(running_judge(run.logs / "judge", workers=judge.workers))
            url, token, isolation = started.url, started.token, str(started.isolation)
        else:
            isolation = _isolation(url, token)
        grader = stack.enter_context(GraderPool())
        stack.enter_context(view)
        if isolation == "none":
            view.say("judge isolation is none here: the model's programs can read what you can read")
        client = JudgeClient(url, token, patience_s=settings.wait_s)
        about = {"model": opened.identity, "versions": versions(), "judge": {"isolation": isolation}}
        try:
            return asyncio.run(_sample(opened, problems, settings, run, client, grader, view, about))
        except asyncio.CancelledError:
            raise KeyboardInterrupt from None


async def _sample(
    opened: Opened,
    problems: dict[str, list[Problem]],
    settings: EvalSettings,
    run: Run,
    client: JudgeClient,
    grader: GraderPool,
    view: LiveView,
    about: Mapping[str, Any],
) -> Measured:
    stop = _Interrupt(view)
    async with client:
        try:
            results = await evaluate_all(
                {name: (part, run.path / name) for name, part in problems.items()},
                engine=opened.engine,
                codec=opened.codec,
                tools=PythonTool(client),
                grader=grader,
                settings=settings,
                on_progress=view,
                stop=stop.event,
                about=about,
            )
        finally:
            await opened.engine.aclose()
    return Measured(results, stop.asked)


class _Interrupt:
    """Ctrl-C in two steps, for the task that makes it."""

    def __init__(self, view: LiveView) -> None:
        self.event = asyncio.Event()
        self.asked = False
        self._view = view
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("there is no task to interrupt")
        self._task = task
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, self._on_signal)

    def _on_signal(self) -> None:
        look = self._view.last
        if self.asked or (look is not None and look.trouble):
            # Nothing in flight can finish while a server is away.
            self._task.cancel()
            return
        self.asked = True
        self.event.set()
        self._view.say("stopping: what is in flight is finished; Ctrl-C again leaves it")


def folder_names(benchmarks: list[str]) -> list[str]:
    """The names of benchmarks in results and folders: a file's is its stem.

    Raises:
        UserError: two of them would share a folder.
    """
    names = [name.rpartition("/")[2].removesuffix(".jsonl") for name in benchmarks]
    for name in names:
        if names.count(name) > 1:
            raise UserError(f"{name} is named twice", "Name each benchmark once; rename one of the files.")
    return names
