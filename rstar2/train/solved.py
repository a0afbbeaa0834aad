"""Which training problems a policy solves every time: stage 3 leaves them out (arXiv 2508.20722)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from rstar2.data.problem import Problem
from rstar2.engines.base import Engine
from rstar2.engines.models import open_folder
from rstar2.errors import UserError
from rstar2.eval.grader import GraderPool
from rstar2.eval.progress import Progress
from rstar2.eval.runner import EvalResult, evaluate
from rstar2.eval.settings import EvalSettings
from rstar2.judge.client import JudgeClient
from rstar2.judge.client.python_tool import PythonTool
from rstar2.prompts import ChatCodec, load_codec
from rstar2.train.recipe import RolloutSettings, StageRecipe

SERVER_READY_S = 1800.0
"""How long a vLLM server may take to load the policy."""


def problems_of(rows: list[dict[str, Any]]) -> list[Problem]:
    """The problems of RL rows.

    Raises:
        UserError: a row does not hold its problem's id and text.
    """
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


def sample(
    model: Path,
    problems: list[Problem],
    settings: EvalSettings,
    rollout: RolloutSettings,
    judge: tuple[str, str | None],
    out: Path,
    on_progress: Callable[[Progress], None],
    engine: Callable[[Path], tuple[Engine, ChatCodec]] | None = None,
) -> EvalResult:
    """Sample problems with a policy, on the tools it is trained with.

    Args:
        judge: its URL and token.
        out: gets traces.jsonl; a killed call goes on from it.
        engine: what generates; the in-process engine by default.

    Raises:
        Failure: the engine or judge stayed away; finished samples are kept.
    """

    async def work() -> EvalResult:
        opened, codec = engine(model) if engine else _local(model, settings)
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


def sample_solved(
    model: Path,
    rows: list[dict[str, Any]],
    recipe: StageRecipe,
    judge: tuple[str, str | None],
    out: Path,
    logs: Path,
    on_progress: Callable[[Progress], None],
) -> Path:
    """Sample every training problem `recipe.drop_solved` times with the policy the stage starts from.

    On a CPU in this process; on GPUs by a vLLM server that is started for it.

    Returns:
        The file of traces.

    Raises:
        UserError: vLLM is not installed.
        Failure: the server did not come up, or stayed away.
    """
    settings = EvalSettings(
        samples=recipe.drop_solved,
        temperature=recipe.rollout.temperature,
        max_tokens=recipe.rollout.tokens,
        max_turns=recipe.rollout.max_turns,
        in_flight=128 if recipe.hardware.device == "cpu" else 1024,
        seed=recipe.seed,
    )
    problems = problems_of(rows)
    if recipe.hardware.device == "cpu":
        sample(model, problems, settings, recipe.rollout, judge, out, on_progress)
        return out / "traces.jsonl"
    import socket
    import sys

    from rstar2.engines.vllm import VLLMEngine
    from rstar2.serve import ServeSettings, find_vllm, install_hint, running_server, vllm_command

    vllm = find_vllm(sys.executable)
    if vllm is None:
        raise UserError("sampling the training problems needs vLLM, which is not installed", install_hint())
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    serve = ServeSettings(model=str(model), port=port, tp=recipe.hardware.tensor_parallel)
    command, environment = vllm_command(vllm, serve)
    with running_server(command, environment, serve.url, logs / "vllm.log", SERVER_READY_S):

        def engine(folder: Path) -> tuple[Engine, ChatCodec]:
            codec = load_codec(folder)
            return VLLMEngine(serve.url, stop_token_ids=[codec.end_id]), codec

        sample(model, problems, settings, recipe.rollout, judge, out, on_progress, engine)
    return out / "traces.jsonl"


def _local(model: Path, settings: EvalSettings) -> tuple[Engine, ChatCodec]:
    # One thread: for so small a model a second one costs more in waiting than it brings.
    return open_folder(model, settings.in_flight, threads=1)


@asynccontextmanager
async def _closing(engine: Engine) -> AsyncIterator[Engine]:
    try:
        yield engine
    finally:
        await engine.aclose()
