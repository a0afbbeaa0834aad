"""Samples problems with a model folder and grades the samples, with the tools the model is trained with."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from rstar2.data.problem import Problem
from rstar2.engines.base import Engine
from rstar2.engines.models import open_folder
from rstar2.eval.grader import GraderPool
from rstar2.eval.progress import Progress
from rstar2.eval.runner import EvalResult, evaluate
from rstar2.eval.settings import EvalSettings
from rstar2.judge.client import JudgeClient
from rstar2.judge.client.python_tool import PythonTool
from rstar2.prompts import ChatCodec
from rstar2.train.recipe import RolloutSettings

JudgeAddress = tuple[str, str | None]
"""A judge's URL and token."""
OpenEngine = Callable[[Path, EvalSettings], tuple[Engine, ChatCodec]]
"""Opens a model folder."""


def in_process(model: Path, settings: EvalSettings) -> tuple[Engine, ChatCodec]:
    """The engine of this process. One thread: for a tiny model a second one costs more than it gains."""
    return open_folder(model, settings.in_flight, threads=1)


def sample(
    model: Path,
    problems: list[Problem],
    settings: EvalSettings,
    rollout: RolloutSettings,
    judge: JudgeAddress,
    out: Path,
    on_progress: Callable[[Progress], None],
    engine: OpenEngine = in_process,
) -> EvalResult:
    """Sample every problem `settings.samples` times.

    Args:
        out: gets traces.jsonl and results.json; a killed call resumes from them.
        engine: what generates.

    Raises:
        Failure: the engine or judge no longer answers; finished samples are kept.
    """

    async def work() -> EvalResult:
        opened, codec = engine(model, settings)
        client = JudgeClient(*judge)
        tools = PythonTool(client, rollout.tool_timeout_s, rollout.traceback_lines)
        async with _closing(opened):
            with GraderPool(workers=1) as grader:
                try:
                    return await evaluate(
                        problems,
                        engine=opened,
                        codec=codec,
                        tools=tools,
                        grader=grader,
                        settings=settings,
                        out=out,
                        on_progress=on_progress,
                        name=out.name,
                    )
                finally:
                    await client.aclose()

    return asyncio.run(work())


@asynccontextmanager
async def _closing(engine: Engine) -> AsyncIterator[Engine]:
    try:
        yield engine
    finally:
        await engine.aclose()
