"""Samples a model on problems, and leaves out problems that the model always solves, as in stage 3 of the paper (arXiv
2508.20722)."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rstar2.data.problem import Problem
from rstar2.engines.pool import EnginePool
from rstar2.errors import UserError
from rstar2.eval.grader import GraderPool
from rstar2.eval.methods.agent import Agent, AgentMethod, RetryingTools
from rstar2.eval.progress import Progress, Services
from rstar2.eval.run import EvalResult, Part, run_parts
from rstar2.eval.settings import EvalSettings
from rstar2.judge.client import JudgeClient
from rstar2.loop.engine import Engine
from rstar2.loop.toolbox import Toolbox
from rstar2.loop.turns.codec import ChatCodec
from rstar2.retry import RetryPolicy

JudgeAddress = tuple[str, str | None]
"""A judge's URL and the judge's token. The token is None if the judge needs no token."""
Rows = list[dict[str, Any]]
"""Training problems in the form of `rstar2.data.parquet.rl_rows`."""
OnProgress = Callable[[Progress], None]


@dataclass(frozen=True)
class Evaluation:
    """Problems, and the settings for sampling a model on them."""

    problems: list[Problem]
    settings: EvalSettings


def sample(
    engines: Sequence[Engine],
    codec: ChatCodec,
    evaluation: Evaluation,
    judge: JudgeAddress,
    out: Path,
    on_progress: OnProgress,
) -> EvalResult:
    """Samples every problem `settings.samples` times.

    If the function was killed, it can be called again: it then continues with the samples in `out`.

    Args:
        engines: engines of one model. The engines are closed at the end.
        out: the folder for traces and results.

    Raises:
        Failure: an engine or the judge does not answer any more. Samples that are finished stay in `out`.
    """

    settings = evaluation.settings

    async def work() -> EvalResult:
        with GraderPool(workers=1) as grader:
            async with AsyncExitStack() as stack:
                for engine in engines:
                    await stack.enter_async_context(aclosing(engine))
                client = await stack.enter_async_context(JudgeClient(*judge))
                retries = RetryPolicy(settings.wait_s)
                pool = EnginePool(engines, retries, settings.turn_timeout_s)
                tools = RetryingTools(Toolbox(client, codec.format), retries)
                method = AgentMethod(Agent(pool, tools, codec, grader), settings)
                part = Part(evaluation.problems, out, method)
                services = Services(retries, (pool,), tools)
                (result,) = await run_parts({out.name: part}, settings.in_flight, services, on_progress)
                return result

    return asyncio.run(work())


def problems_of(rows: Rows) -> list[Problem]:
    """Returns the problems that RL rows contain. Raises UserError if a row does not contain the id and text of its
    problem."""
    problems = []
    for number, row in enumerate(rows, 1):
        about = row.get("extra_info") or {}
        if not about.get("id") or not about.get("problem"):
            raise UserError(
                f"row {number} of the training data has no extra_info.id and extra_info.problem",
                "Prepare the data with `rstar2 data prepare`.",
            )
        problems.append(Problem(about["id"], about["problem"], row["reward_model"]["ground_truth"]))
    return problems


def drop_solved(rows: Rows, samples: Iterable[tuple[str, bool]], times: int, fill: int) -> Rows:
    """Leaves out the problems that were solved in every sample.

    Args:
        samples: the problem id of each sample, and whether the sample solved the problem. The samples must come from
            the policy from which the stage starts.
        times: only this many samples of each problem are used.
        fill: the number of problems that a step needs, see `leave_out`.

    Raises:
        UserError: a problem has fewer than `times` samples.
    """
    outcomes: dict[str, list[bool]] = defaultdict(list)
    for problem, is_solved in samples:
        outcomes[problem].append(is_solved)
    solved = []
    for row in rows:
        name = row["extra_info"]["id"]
        check_samples(name, len(outcomes[name]), times)
        solved.append(all(outcomes[name][:times]))
    return leave_out(rows, solved, fill)


def leave_out(rows: Rows, solved: Iterable[bool], fill: int) -> Rows:
    """Leaves out the rows that are solved. If fewer than `fill` rows remain, the first solved rows are added again."""
    unsolved: Rows = []
    others: Rows = []
    for row, is_solved in zip(rows, solved, strict=True):
        (others if is_solved else unsolved).append(row)
    return unsolved + others[: max(0, fill - len(unsolved))]


def check_samples(problem: str, samples: int, times: int) -> None:
    """Raises UserError if a problem has too few samples to decide whether the problem is solved."""
    if samples < times:
        raise UserError(
            f"problem {problem} has {samples} samples, but {times} are needed to decide whether it is solved",
            f"Sample the training problems {times} times with the policy that the stage starts from.",
        )
