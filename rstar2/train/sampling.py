"""Samples problems with a model and grades the samples, with the tools the model is trained with."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

from rstar2.data.problem import Problem
from rstar2.engines.base import Engine
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
Rows = list[dict[str, Any]]
"""Training problems, as `rstar2.data.parquet.rl_rows` makes them."""
OnProgress = Callable[[Progress], None]
ENGINE_THREADS = 1
"""Of an engine in this process: for a tiny model a second one costs more than it gains."""


def sample(
    engine: Engine,
    codec: ChatCodec,
    problems: list[Problem],
    settings: EvalSettings,
    rollout: RolloutSettings,
    judge: JudgeAddress,
    out: Path,
    on_progress: OnProgress,
) -> EvalResult:
    """Sample every problem `settings.samples` times, and close the engine.

    Args:
        rollout: its tool settings are used.
        out: gets traces.jsonl and results.json; a killed call resumes from them.

    Raises:
        Failure: the engine or judge no longer answers; finished samples are kept.
    """

    async def work() -> EvalResult:
        with GraderPool(workers=1) as grader:
            async with aclosing(engine), JudgeClient(*judge) as client:
                (result,) = await evaluate(
                    {out.name: (problems, out)},
                    engine=engine,
                    codec=codec,
                    tools=PythonTool(client, rollout.tool_timeout_s, rollout.traceback_lines),
                    grader=grader,
                    settings=settings,
                    on_progress=on_progress,
                )
                return result

    return asyncio.run(work())
