"""Tests that all commands give tiny random models of several families the same token ids."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("renderers")

from support.commands import rstar2
from support.family_tokenizers import family_tokenizer
from support.optional import needs
from support.prompt_ids import chat_prompt_ids, eval_prompt_ids, verl_prompt_ids
from support.tools import SharedTools

from rstar2.data import builtin
from rstar2.data.parquet import rl_rows, write_parquet
from rstar2.data.problem import Problem
from rstar2.judge.service.start import JudgeHandle
from rstar2.loop.agent import Limits
from rstar2.loop.engine import Generation, OnTokens, Sampling
from rstar2.loop.formats.format import FORMAT_FILE, read_format
from rstar2.loop.model_folder import write_format
from rstar2.loop.tools.python_code_with_standard_io import NAME
from rstar2.loop.trace import ToolCall, read_traces
from rstar2.loop.turns.check import _runs
from rstar2.loop.turns.choose import codec_for, load_codec, load_tokenizer
from rstar2.loop.turns.codec import ChatCodec
from rstar2.train.conversations import encode, read_conversations

pytestmark = [pytest.mark.slow, needs("torch")]

FAMILIES = ("qwen3", "qwen3.5", "glm-4.5", "glm-5", "llama-3", "minimax-m2", "nemotron-3")
PROBLEM = Problem("pi", "Was ist 2 · π? <|im_end|>", "4")
OUTPUT = "π\n日本語"
CALL = {"type": "function", "function": {"name": NAME, "arguments": {"code": "print('π')\nx = \"<b>\""}}}


def family_model(folder: Path, family: str) -> Path:
    """Creates a random model. Only its tokenizer and its format are those of the family.

    VERL accepts a model of Qwen's architecture only with a tokenizer of Qwen's.
    """
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

    tokenizer = family_tokenizer(family)
    like_qwen = "<|im_end|>" in tokenizer.get_vocab()
    config = (Qwen3Config if like_qwen else LlamaConfig)(
        vocab_size=len(tokenizer) + 8,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
    )
    torch.manual_seed(1)
    (Qwen3ForCausalLM if like_qwen else LlamaForCausalLM)(config).to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    write_format(codec_for(load_tokenizer(folder), read_format(family, ""), family), folder, folder)
    return folder


@pytest.fixture(params=FAMILIES)
def model(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return family_model(tmp_path / "model", request.param)


def conversation(codec: ChatCodec) -> list[dict[str, Any]]:
    return [
        *codec.format.messages(PROBLEM.problem),
        {"role": "assistant", "content": "", "reasoning_content": "I ask.", "tool_calls": [CALL]},
        {"role": "tool", "name": NAME, "content": OUTPUT},
        {"role": "assistant", "content": "\\boxed{4}", "reasoning_content": "I see."},
    ]


@dataclass
class Recorder:
    """An engine that writes the assistant turns of an SFT conversation, and records its prompts."""

    codec: ChatCodec
    name: str = "recorder"
    prompts: list[list[int]] = field(default_factory=list)

    def write(self, prompt: Sequence[int]) -> list[int]:
        sample = self.codec.training_sample(conversation(self.codec), None)
        start, end = _runs(sample.loss_mask.tolist())[len(self.prompts)]
        self.prompts.append(list(prompt))
        return sample.input_ids.tolist()[start:end]

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, on_tokens: OnTokens | None = None
    ) -> Generation:
        ids = self.write(prompt_ids)
        if on_tokens is not None:
            on_tokens(ids)
        return Generation(ids, None, "stop")

    async def aclose(self) -> None:
        return


class Tools(SharedTools):
    async def run(self, name: str, arguments: dict[str, Any]) -> ToolCall:
        assert arguments == CALL["function"]["arguments"]  # type: ignore[index]
        return ToolCall(name=name, arguments=arguments, status="ok", output=OUTPUT)


@pytest.mark.parametrize("family", FAMILIES)
async def test_eval_chat_verl_and_sft_have_the_same_ids(family: str, tmp_path: Path) -> None:
    pytest.importorskip("verl")
    model = family_model(tmp_path / "model", family)
    codec = load_codec(model)
    assert codec.format.family == family
    assert codec.source == f"{FORMAT_FILE} (family {family}; thoughts of earlier turns {codec.thoughts})"
    prompts = await eval_prompt_ids(Recorder(codec), codec, Tools(), PROBLEM, tmp_path)
    sample = codec.training_sample(conversation(codec), None)
    starts = [start for start, _ in _runs(sample.loss_mask.tolist())]
    assert prompts == [sample.input_ids.tolist()[:start] for start in starts]
    assert await chat_prompt_ids(Recorder(codec), codec, Tools(), PROBLEM) == prompts
    assert await verl_prompt_ids(Recorder, model, Tools(), PROBLEM, "boxed") == prompts
    [trace] = read_traces(tmp_path / "eval" / "traces.jsonl")
    assert (trace.verdict, [call.arguments for call in trace.calls]) == (
        "correct",
        [CALL["function"]["arguments"]],
    )  # type: ignore[index]
    thoughts = [turn.text_of("thought").strip() for turn in trace.turns]
    assert thoughts == (["", ""] if family == "llama-3" else ["I ask.", "I see."])


def test_the_commands_take_a_model_of_a_family(model: Path, tmp_path: Path, judge: JudgeHandle) -> None:
    problems = tmp_path / "one.jsonl"
    problems.write_text(json.dumps({"id": "p", "problem": PROBLEM.problem, "answer": "4"}) + "\n")
    codec = load_codec(model)
    prompt = codec.prompt(codec.format.messages(PROBLEM.problem))
    limits = ("--max-tokens", 12, "--judge", judge.url)
    result = rstar2("eval", problems, "--model", model, "-n", 1, "--run", tmp_path / "eval", *limits)
    assert result.code == 0, result.stderr
    [trace] = read_traces(tmp_path / "eval" / "one" / "traces.jsonl")
    assert trace.prompt_ids == prompt
    result = rstar2(
        "chat",
        "--model",
        model,
        "--json",
        "--prompt",
        PROBLEM.problem,
        "--transcript",
        tmp_path / "chat",
        *limits,
    )
    assert result.code == 0, result.stderr
    [trace] = read_traces(tmp_path / "chat" / "traces.jsonl")
    assert trace.prompt_ids == prompt
    result = rstar2("format", "show", model, "--problem", PROBLEM.problem, "--json")
    assert json.loads(result.stdout)["prompt_ids"] == prompt


def test_the_agents_endpoint_shows_the_model_the_same_and_its_client_thought_and_answer(model: Path) -> None:
    from fastapi import FastAPI
    from fastapi.testclient import TestClient

    from rstar2.serve.openai.agent import Agent, agent_router

    codec = load_codec(model)
    engine, app = Recorder(codec), FastAPI()
    app.include_router(agent_router(Agent(engine, codec, Tools(), Limits(), "tiny")))
    with TestClient(app) as client:
        body = {"messages": [{"role": "user", "content": PROBLEM.problem}]}
        message = client.post("/v1/chat/completions", json=body).json()["choices"][0]["message"]
    sample = codec.training_sample(conversation(codec), None)
    starts = [start for start, _ in _runs(sample.loss_mask.tolist())]
    assert engine.prompts == [sample.input_ids.tolist()[:start] for start in starts]
    assert message["content"] == "\\boxed{4}"
    assert ("I ask." in message["reasoning_content"]) is (codec.format.family != "llama-3")
    assert [call["output"] for call in message["executed_tools"]] == [OUTPUT]


TRAINED = ("qwen3.5", "glm-5")


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("family", TRAINED)
def test_a_step_of_sft_and_of_rl(family: str, tmp_path: Path, judge: JudgeHandle) -> None:
    pytest.importorskip("verl")
    model = family_model(tmp_path / "model", family)
    codec = load_codec(model)
    data = tmp_path / "conversations.jsonl"
    rows = [{"messages": conversation(codec)}] * 4
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    sets: Callable[..., list[str]] = lambda *keys: [word for key in keys for word in ("--set", key)]  # noqa: E731
    result = rstar2(
        "sft", "--model", model, "--data", data, "--run", tmp_path / "sft", "--profile", "laptop",
        *sets("batch=4", "epochs=1", "max_tokens=4096", f"format={family}"),
    )  # fmt: skip
    assert result.code == 0, result.stderr
    sft_codec = load_codec(tmp_path / "sft" / "model")
    assert sft_codec.format.family == family
    [first, *_] = [encode(row, sft_codec) for row in read_conversations(data)]
    assert first == codec.training_sample(conversation(codec), None)
    problems = tmp_path / "problems.parquet"
    write_parquet(problems, rl_rows(builtin.training(1, 4), 4, "builtin"))
    result = rstar2(
        "train", "--stage", 1, "--model", tmp_path / "sft" / "model", "--data", problems, "--run", tmp_path / "rl",
        "--profile", "laptop", "--judge", judge.url,
        *sets("steps=1", "rollout.prompts=2", "rollout.rollouts=4", "rollout.prompt_tokens=2048", "rollout.tokens=32",
              "rollout.max_turns=2", "groups.keep=2", "groups.drop_equal_rewards=false", "reward=constant"),
    )  # fmt: skip
    assert result.code == 0, result.stderr
    rl_codec = load_codec(tmp_path / "rl" / "stage1" / "model")
    assert rl_codec.format == sft_codec.format
    traces = [trace for path in (tmp_path / "rl").rglob("traces/*.jsonl") for trace in read_traces(path)]
    assert traces
    for trace in traces:
        assert trace.prompt_ids == rl_codec.prompt(rl_codec.format.messages(trace.problem))
