"""Samples problems with a model, and leaves out those it solves every time, as stage 3 does (arXiv 2508.20722)."""

from __future__ import annotations

import asyncio
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rstar2.data.problem import Problem
from rstar2.engines.base import Engine
from rstar2.engines.models import open_folder, open_server
from rstar2.errors import UserError
from rstar2.eval.grader import GraderPool
from rstar2.eval.progress import Progress
from rstar2.eval.runner import EvalResult, evaluate
from rstar2.eval.settings import EvalSettings
from rstar2.judge.client import JudgeClient
from rstar2.processes import free_port
from rstar2.prompts import ChatCodec
from rstar2.serve import ServeSettings, find_vllm, install_hint, running_server, vllm_command
from rstar2.toolbox import Toolbox
from rstar2.train.recipe import Hardware, StageRecipe

JudgeAddress = tuple[str, str | None]
"""A judge's URL and token."""
Rows = list[dict[str, Any]]
"""Training problems, as `rstar2.data.parquet.rl_rows` makes them."""
OnProgress = Callable[[Progress], None]
ENGINE_THREADS = 1
"""Of an engine in this process: for a tiny model a second one costs more than it gains."""
SERVER_READY_S = 1800.0
"""How long a vLLM server may take to load the policy."""


@dataclass(frozen=True)
class Evaluation:
    """Problems, and how a model is measured on them."""

    problems: list[Problem]
    settings: EvalSettings


def sample(
    engine: Engine,
    codec: ChatCodec,
    evaluation: Evaluation,
    judge: JudgeAddress,
    out: Path,
    on_progress: OnProgress,
) -> EvalResult:
    """Sample every problem `settings.samples` times, and close the engine.

    Traces and results are written to `out`, from which a killed call resumes. A Failure where the engine or judge no
    longer answers; finished samples are kept.
    """

    async def work() -> EvalResult:
        with GraderPool(workers=1) as grader:
            async with aclosing(engine), JudgeClient(*judge) as client:
                (result,) = await evaluate(
                    {out.name: (evaluation.problems, out)},
                    engine=engine,
                    codec=codec,
                    tools=Toolbox(client, codec.format),
                    grader=grader,
                    settings=evaluation.settings,
                    on_progress=on_progress,
                )
                return result

    return asyncio.run(work())


def problems_of(rows: Rows) -> list[Problem]:
    """The problems of RL rows; a UserError for a row that does not hold its problem's id and text."""
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


def sample_training_problems(
    model: Path,
    rows: Rows,
    recipe: StageRecipe,
    judge: JudgeAddress,
    out: Path,
    logs: Path,
    on_progress: OnProgress,
) -> Path:
    """Sample every training problem `recipe.drop_solved` times with the policy the stage starts from.

    On a CPU in this process; on GPUs with a vLLM server that runs for as long as this takes. Returns the file of
    traces. A UserError without vLLM, a Failure where server or judge do not start or no longer answer.
    """
    settings = EvalSettings(
        samples=recipe.drop_solved,
        temperature=recipe.rollout.temperature,
        max_tokens=recipe.rollout.tokens,
        max_turns=recipe.rollout.max_turns,
        in_flight=128 if recipe.hardware.device == "cpu" else 1024,
        seed=recipe.seed,
    )
    evaluation = Evaluation(problems_of(rows), settings)
    with _opened(model, settings, recipe.hardware, logs) as (engine, codec):
        sample(engine, codec, evaluation, judge, out, on_progress)
    return out / "traces.jsonl"


@contextmanager
def _opened(
    model: Path, settings: EvalSettings, hardware: Hardware, logs: Path
) -> Iterator[tuple[Engine, ChatCodec]]:
    """The policy's engine: in this process on a CPU, else a vLLM server that runs for the length of the block."""
    if hardware.device == "cpu":
        yield open_folder(model, settings.in_flight, threads=ENGINE_THREADS)
        return
    vllm = find_vllm(sys.executable)
    if vllm is None:
        raise UserError("sampling the training problems needs vLLM, which is not installed", install_hint())
    serve = ServeSettings(model=str(model), port=free_port(), tp=hardware.tensor_parallel)
    command, environment = vllm_command(vllm, serve)
    with running_server(command, environment, serve.url, logs / "vllm.log", SERVER_READY_S):
        server = asyncio.run(open_server(serve.url, tokenizer=str(model)))
        yield server.engine, server.codec


def drop_solved(rows: Rows, samples: Iterable[tuple[str, bool]], times: int, fill: int) -> Rows:
    """Leave out the problems that were solved every time; where fewer than `fill` are left, solved ones fill up.

    Args:
        samples: by the policy that the stage starts from: the problem, and whether it was solved.
        times: samples per problem that count; a UserError where one has fewer.
    """
    outcomes: dict[str, list[bool]] = defaultdict(list)
    for problem, right in samples:
        outcomes[problem].append(right)
    unsolved: Rows = []
    solved: Rows = []
    for row in rows:
        name = row["extra_info"]["id"]
        counted = outcomes[name][:times]
        if len(counted) < times:
            raise UserError(
                f"problem {name} has {len(counted)} samples, {times} are needed to tell whether it is solved",
                f"Sample the training problems {times} times with the policy that the stage starts from.",
            )
        (solved if all(counted) else unsolved).append(row)
    return unsolved + solved[: max(0, fill - len(unsolved))]


def traces_of_eval(path: Path) -> Path:
    """The traces of an `rstar2 eval` run of one benchmark, given its folder or the file; else a UserError."""
    found = [path] if path.is_file() else sorted(path.glob("**/traces.jsonl"))
    if len(found) != 1:
        raise UserError(
            f"--solved {path}: {len(found)} files of traces there, one is needed",
            "Give the `rstar2 eval` run over the training problems, or its traces.jsonl.",
        )
    return found[0]
