"""Measures a model on benchmarks: takes a user's request and writes the results.

```
measure(request) ─→ plan_evaluation: servers, problems, model ─→ open_run: the run's folder
                 ─→ judge, grader, methods ─→ run_parts: samples, verdicts, results.json ─→ view: tables
```
After the first Ctrl-C, no sample is started, and the samples in flight finish. The second Ctrl-C abandons the samples
in flight. Every finished sample is kept, after the first and after the second Ctrl-C.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rstar2.engines.pool import EnginePool
from rstar2.eval.adaptations import Adaptations
from rstar2.eval.benchmarks import Resources
from rstar2.eval.control import Control, answer_requests
from rstar2.eval.extension import extended_config
from rstar2.eval.grader import GraderPool
from rstar2.eval.methods.agent import Agent, RetryingTools
from rstar2.eval.methods.chat import JUDGE_MODEL, ServerChat
from rstar2.eval.plan import EvalPlan, EvalRequest, plan_evaluation
from rstar2.eval.progress import Services, TokenCounter
from rstar2.eval.run import EvalResult, Part, SamplesRefused, run_parts
from rstar2.eval.target import versions
from rstar2.eval.terminal.live import LiveView
from rstar2.judge.client import JudgeClient
from rstar2.judge.service.start import running_judge
from rstar2.loop.toolbox import Toolbox
from rstar2.retry import RetryPolicy
from rstar2.runs import Run, open_run


def measure(request: EvalRequest, view: LiveView) -> None:
    """Sample and grade every benchmark, and print the results. In the run's folder, each benchmark has a folder of its
    own, which is named after the benchmark.

    Raises:
        KeyboardInterrupt: Ctrl-C was pressed twice, or it was pressed once and some samples are missing.
        SamplesRefused: a server refused some samples. The results of the other samples are printed first.
        UserError, Failure: errors of `plan_evaluation` and `rstar2.eval.run.run_parts`.
    """
    retries = RetryPolicy(request.wait_s)
    plan = plan_evaluation(request, retries)
    problems = {name: each.problems for name, each in plan.benchmarks.items()}
    config, compared = extended_config(plan.folder, request.kind, plan.config, problems)
    with open_run(plan.folder, request.kind, config, compared) as run:
        view.announce(plan)
        refused: SamplesRefused | None = None
        try:
            results, interrupted = _Measurement(plan, run, retries, view).run()
        except SamplesRefused as error:
            results, interrupted, refused = error.results, False, error
        view.show_results(results, run.path)
        if refused is not None:
            raise refused
        if interrupted:
            view.say("start the same command again to continue")
            raise KeyboardInterrupt


@dataclass(frozen=True)
class _RunningJudge:
    """The judge that runs the model's programs."""

    url: str
    token: str | None
    isolation: str


@dataclass(frozen=True)
class _Measurement:
    """One start of an evaluation."""

    plan: EvalPlan
    run_folder: Run
    retries: RetryPolicy
    view: LiveView

    def run(self) -> tuple[list[EvalResult], bool]:
        """Make and grade the samples. Returns the results, and whether samples are missing because of Ctrl-C."""
        needs_judge = any(not each.benchmark.chat for each in self.plan.benchmarks.values())
        with contextlib.ExitStack() as stack:
            judge = stack.enter_context(self._judge()) if needs_judge else None
            grader = stack.enter_context(GraderPool()) if needs_judge else None
            stack.enter_context(self.view)
            about = self._about(judge)
            try:
                return asyncio.run(self._sample(judge, grader, about))
            except asyncio.CancelledError:
                raise KeyboardInterrupt from None

    @contextlib.contextmanager
    def _judge(self) -> Iterator[_RunningJudge]:
        judge, report = self.plan.request.judge, self.plan.judge_report
        if judge.url is not None and report is not None:
            yield _RunningJudge(judge.url, judge.token, report.isolation or "unknown")
            return
        logs = self.run_folder.logs / "judge"
        with running_judge(logs, workers=judge.workers, preload=judge.preload) as started:
            yield _RunningJudge(started.url, started.token, str(started.isolation))

    def _about(self, judge: _RunningJudge | None) -> dict[str, Any]:
        """Returns the entries of results.json that are the same for all benchmarks. Prints a note about each unusual
        entry."""
        opened, report = self.plan.opened, self.plan.judge_report
        about: dict[str, Any] = {"model": dict(opened.identity), "versions": versions()}
        if opened.folder is not None:
            about["model"]["path"] = str(opened.folder.absolute())
        if opened.left_to_server:
            about["left_to_server"] = opened.left_to_server
        if judge is not None:
            about["judge"] = {"isolation": judge.isolation}
            if judge.isolation == "none":
                self.view.note(
                    "judge isolation is `none`: the model's programs can read all files that you can read"
                )
        if report is not None and report.missing:
            about["judge"]["missing_packages"] = sorted(report.missing)
            self.view.note(f"programs on the judge cannot import {report.missing_text}")
        return about

    async def _sample(
        self, judge: _RunningJudge | None, grader: GraderPool | None, about: dict[str, Any]
    ) -> tuple[list[EvalResult], bool]:
        plan, interrupt = self.plan, _Interrupt(self.view)
        async with contextlib.AsyncExitStack() as stack:
            resources, services = await self._resources(judge, grader, stack)
            adaptations = Adaptations(
                self.run_folder.path, plan.benchmarks, about, lambda line: self.view.warn([line])
            )
            for model in (plan.opened.engine, resources.chat):
                adaptations.watch(model, "the model")
            adaptations.watch(resources.judge_model, "the judge model", "judge_")
            parts = {}
            for name, each in plan.benchmarks.items():
                method = each.benchmark.opened(resources, each.settings, plan.request.files)
                parts[name] = Part(
                    each.problems,
                    self.run_folder.path / name,
                    await stack.enter_async_context(method),
                    each.benchmark.combined,
                    plan.request.record,
                    each.as_published,
                    each.unreadable,
                )
            control = Control(plan.base.in_flight, self.view.note)
            requests = answer_requests(self.run_folder.logs / "control", control, interrupt.stop)
            stack.callback(asyncio.create_task(requests).cancel)
            results = await run_parts(
                parts, plan.base.in_flight, services, self.view, interrupt.stop, about, control
            )
        # If Ctrl-C was pressed during the last samples, none is left out.
        return results, interrupt.pressed and not all(result.complete for result in results)

    async def _resources(
        self, judge: _RunningJudge | None, grader: GraderPool | None, stack: contextlib.AsyncExitStack
    ) -> tuple[Resources, Services]:
        """Open the resources that the benchmarks share. Also returns the services whose counters show the run's
        progress."""
        opened, retries, turn_timeout_s = self.plan.opened, self.retries, self.plan.base.turn_timeout_s
        models: list[TokenCounter] = []
        agent, tools, chat, judge_model = None, None, None, None
        if opened.engine is not None:
            await stack.enter_async_context(contextlib.aclosing(opened.engine))
        if judge is not None and grader is not None:
            assert opened.engine is not None
            assert opened.codec is not None
            client = JudgeClient(judge.url, judge.token, wait_s=retries.wait_s)
            await stack.enter_async_context(client)
            engines = EnginePool([opened.engine], retries, turn_timeout_s)
            tools = RetryingTools(Toolbox(client, opened.codec.format), retries)
            agent = Agent(engines, tools, opened.codec, grader)
            models.append(engines)
        if any(each.benchmark.chat for each in self.plan.benchmarks.values()):
            chat = opened.chat(retries, turn_timeout_s)
            await stack.enter_async_context(contextlib.aclosing(chat))
            models.append(chat)
        if (grading := self.plan.judge_model) is not None:
            judge_model = ServerChat(
                grading.url, grading.name, retries, turn_timeout_s, JUDGE_MODEL, grading.key
            )
            await stack.enter_async_context(contextlib.aclosing(judge_model))
        resources = Resources(chat, agent, judge_model, self.run_folder.logs, self.run_folder.path)
        return resources, Services(retries, tuple(models), tools)


class _Interrupt:
    """Handles Ctrl-C. The first Ctrl-C sets `stop`. The second Ctrl-C cancels the task that created this object."""

    def __init__(self, view: LiveView) -> None:
        self.stop = asyncio.Event()
        self.pressed = False
        self._view = view
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("there is no task to interrupt")
        self._task = task
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, self._on_signal)

    def _on_signal(self) -> None:
        progress = self._view.last
        if self.pressed or (progress is not None and progress.trouble):
            # Nothing in flight can finish while a server is away.
            self._task.cancel()
            return
        self.pressed = True
        self.stop.set()
        self._view.note("stopping after the samples in flight; press Ctrl-C again to abandon them")
