"""Collects the token ids that a model gets for the same problem in an evaluation, in a chat and in VERL's rollouts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Protocol

from support.tools import SharedTools

from rstar2.chat.conversation import Conversation
from rstar2.data.parquet import rl_rows
from rstar2.data.problem import Problem
from rstar2.eval.grader import GraderPool
from rstar2.eval.run import evaluate
from rstar2.eval.settings import EvalSettings
from rstar2.loop.agent import Limits
from rstar2.loop.engine import Engine, Sampling
from rstar2.loop.formats.format import FORMAT_FILE, read_format
from rstar2.loop.turns.choose import codec_for
from rstar2.loop.turns.codec import ChatCodec


class Recorder(Engine, Protocol):
    """An engine with scripted completions that records its prompts."""

    prompts: list[list[int]]

    def write(self, prompt: Sequence[int]) -> list[int]: ...


async def eval_prompt_ids(
    engine: Recorder, codec: ChatCodec, tools: SharedTools, problem: Problem, folder: Path
) -> list[list[int]]:
    with GraderPool(workers=1) as grader:
        await evaluate(
            {"one": ([problem], folder / "eval")},
            engine=engine,
            codec=codec,
            tools=tools,
            grader=grader,
            settings=EvalSettings(samples=1),
        )
    return engine.prompts


async def chat_prompt_ids(
    engine: Recorder, codec: ChatCodec, tools: SharedTools, problem: Problem
) -> list[list[int]]:
    await Conversation(engine, codec, tools, Limits(), Sampling()).ask(problem.problem)
    return engine.prompts


async def verl_prompt_ids(
    make_engine: Callable[[ChatCodec], Recorder],
    model: Path,
    tools: SharedTools,
    problem: Problem,
    reward: str,
) -> list[list[int]]:
    """Run rstar2's agent loop on a row of a stage, with VERL's tokenizer. The rollout must get a reward."""
    from verl.utils import hf_tokenizer

    from rstar2.train.reward import Reward
    from rstar2.train.stages import in_format
    from rstar2.train.verl.agent_loop import RStarAgentLoop

    codec = codec_for(hf_tokenizer(str(model)), read_format(str(model / FORMAT_FILE)))
    engine = make_engine(codec)

    class Server:
        async def generate(self, prompt_ids: list[int], **_: Any) -> SimpleNamespace:
            return SimpleNamespace(token_ids=engine.write(prompt_ids), log_probs=None, extra_fields={})

    loop: Any = RStarAgentLoop.__new__(RStarAgentLoop)
    loop._recover = False
    loop.server_manager, loop.rollout_config = Server(), SimpleNamespace(name="vllm")
    loop._codec, loop._limits, loop._tools = codec, Limits(), tools
    loop._traces, loop._trace_share, loop._seed, loop._reward = None, 0.0, 1, Reward(reward)
    (row,) = in_format(rl_rows([problem], 2, "test"), codec.format)
    verl_columns = {key: row[key] for key in ("extra_info", "reward_model")}
    output = await loop.run(
        {"temperature": 1.0}, raw_prompt=row["prompt"], uid="u", session_id=0, global_steps=1, **verl_columns
    )
    assert output.reward_score == 1.0
    assert output.prompt_ids == engine.prompts[0]
    return engine.prompts
