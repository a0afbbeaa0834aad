"""The engine and `rstar2 serve` against vLLM itself, where one is installed.

vLLM needs an environment of its own, so these tests are collected only where RSTAR2_VLLM_PYTHON names its interpreter:

    make test-vllm, or after the commands that `rstar2 doctor` prints for vLLM
    RSTAR2_VLLM_PYTHON=.venv-vllm/bin/python python -m pytest tests/engines/test_real_vllm.py

One server is started for all of them, by `rstar2 serve --with-tools`: its engine answers token ids, its agent chats.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from rstar2.data import builtin
from rstar2.demo.tiny import TinyModel, make_tiny_model
from rstar2.engines.base import Generation, Sampling
from rstar2.engines.vllm import VLLMEngine
from rstar2.processes import free_port
from rstar2.prompts import ChatCodec, load_codec
from rstar2.serve import ServeSettings, find_vllm, vllm_command
from rstar2.train.scheduler.metrics import Reading, read_vllm

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]
CONTEXT = 512
SAMPLED = Sampling(temperature=0.5, max_tokens=24, seed=7)
GREEDY = Sampling(temperature=0.0, max_tokens=24)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    fmt = builtin.FORMAT
    make_tiny_model(folder, TinyModel(context=CONTEXT), [fmt.messages("What is 2 + 2?")], fmt, seed=0)
    return folder


@pytest.fixture(scope="module")
def codec(model: Path) -> ChatCodec:
    return load_codec(model)


@pytest.fixture(scope="module")
def prompt(codec: ChatCodec) -> list[int]:
    return codec.prompt(codec.format.messages("What is 2 + 2?"))


@dataclass(frozen=True)
class Server:
    """What `rstar2 serve --with-tools` started."""

    engine: str
    """URL of vLLM itself."""
    agent: str


@pytest.fixture(scope="module")
def server(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    port = free_port()
    env = {**os.environ, "RSTAR2_STATE": str(tmp_path_factory.mktemp("state"))}
    words = f"--with-tools --port {port} --max-model-len {CONTEXT} --kv-gib 1 --ready-s 3000 --detach".split()
    extra = ["--", "--enforce-eager", "--dtype", "float32"]
    try:
        ran = _command("serve", str(model), *words, *extra, env=env)
        assert ran.returncode == 0, ran.stderr
        [status] = json.loads(_command("serve", "status", "--json", env=env).stdout)
        assert status["state"] == "answers"
        assert status["running"] == 0
        yield Server(status["engines"][0], status["url"])
    finally:
        _command("serve", "down", "--port", str(port), env=env)


def _command(*words: str, env: dict[str, str], stdin: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "rstar2", *words]
    return subprocess.run(command, capture_output=True, text=True, env=env, input=stdin, timeout=3600)


@pytest.fixture(scope="module")
def url(server: Server) -> str:
    return server.engine


async def _say(
    url: str, prompt: list[int], sampling: Sampling, stop: list[int], pieces: list[list[int]] | None = None
) -> Generation:
    engine = VLLMEngine(url, stop_token_ids=stop)
    try:
        return await engine.generate(prompt, sampling, None if pieces is None else pieces.append)
    finally:
        await engine.aclose()


async def _teacher_forced(model: Path, prompt: list[int], said: list[int], temperature: float) -> list[float]:
    """The log-probabilities that transformers gives to the same tokens."""
    import torch

    from rstar2.engines.hf import HFEngine

    engine = HFEngine(model)
    try:
        with torch.no_grad():
            logits = engine.model(torch.tensor([prompt + said])).logits[0, len(prompt) - 1 : -1].float()
    finally:
        await engine.aclose()
    every = torch.log_softmax(logits / temperature, -1)
    return [float(every[at, token]) for at, token in enumerate(said)]


async def test_a_seed_says_the_same_again_and_streaming_too(url: str, prompt: list[int]) -> None:
    first = await _say(url, prompt, SAMPLED, [])
    pieces: list[list[int]] = []
    assert await _say(url, prompt, SAMPLED, []) == first
    assert await _say(url, prompt, SAMPLED, [], pieces) == first
    assert [token for piece in pieces for token in piece] == first.token_ids
    assert len(pieces) > 1


async def test_a_stop_token_ends_the_turn_and_is_kept(url: str, prompt: list[int]) -> None:
    whole = (await _say(url, prompt, SAMPLED, [])).token_ids
    stop = whole[5]
    said = await _say(url, prompt, SAMPLED, [stop])
    assert said.token_ids == whole[: whole.index(stop) + 1]
    assert said.finish == "stop"


async def test_greedy_tokens_are_those_of_transformers(url: str, model: Path, prompt: list[int]) -> None:
    from rstar2.engines.hf import HFEngine

    engine = HFEngine(model)
    try:
        local = await engine.generate(prompt, GREEDY)
    finally:
        await engine.aclose()
    assert (await _say(url, prompt, GREEDY, [])).token_ids == local.token_ids


async def test_logprobs_are_those_at_the_sampling_temperature(
    url: str, model: Path, prompt: list[int]
) -> None:
    said = await _say(url, prompt, SAMPLED, [])
    assert said.logprobs is not None
    expected = await _teacher_forced(model, prompt, said.token_ids, SAMPLED.temperature)
    assert said.logprobs == pytest.approx(expected, abs=1e-4)


async def test_the_context_is_never_overrun(url: str) -> None:
    near = await _say(url, [5] * (CONTEXT - 4), GREEDY, [])
    assert (len(near.token_ids), near.finish) == (4, "length")
    assert (await _say(url, [5] * CONTEXT, GREEDY, [])).token_ids == []


async def test_a_hundred_turns_at_once_are_those_one_by_one(url: str, prompt: list[int]) -> None:
    engine = VLLMEngine(url)
    samplings = [Sampling(temperature=1.0, max_tokens=8, seed=seed) for seed in range(100)]
    try:
        together = await asyncio.gather(*(engine.generate(prompt, each) for each in samplings))
        alone = [await engine.generate(prompt, each) for each in samplings[:5]]
    finally:
        await engine.aclose()
    assert [turn.token_ids for turn in together[:5]] == [turn.token_ids for turn in alone]


async def test_greedy_log_probabilities_of_both_engines_are_those_of_a_forward_pass(
    url: str, model: Path, prompt: list[int]
) -> None:
    from rstar2.engines.hf import HFEngine

    engine = HFEngine(model)
    try:
        local = await engine.generate(prompt, GREEDY)
    finally:
        await engine.aclose()
    served = await _say(url, prompt, GREEDY, [])
    expected = await _teacher_forced(model, prompt, local.token_ids, 1.0)
    assert served.token_ids == local.token_ids
    assert local.logprobs == pytest.approx(expected, abs=1e-4)
    assert served.logprobs == pytest.approx(expected, abs=1e-4)


PARSE = """
import sys
try:
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
except ImportError:
    from vllm.entrypoints.openai.cli_args import make_arg_parser
try:
    from vllm.utils.argparse_utils import FlexibleArgumentParser
except ImportError:
    from vllm.utils import FlexibleArgumentParser
print(vars(make_arg_parser(FlexibleArgumentParser()).parse_args(sys.argv[1:]))["tensor_parallel_size"])
"""


def test_every_flag_for_gpus_is_one_of_vllms_own(tmp_path: Path) -> None:
    """The arguments of a GPU's layout, read by the parser of the vLLM that is installed."""
    python = os.environ["RSTAR2_VLLM_PYTHON"]
    vllm = find_vllm(python)
    assert vllm is not None
    settings = ServeSettings(
        "some/model", tp=4, max_model_len=32768, gpu_memory=0.73, dtype="half",
        extra=("--chat-template", str(tmp_path / "x.jinja")),
    )  # fmt: skip
    command, _ = vllm_command(vllm, settings)
    arguments = command[command.index("--host") :]
    parsed = subprocess.run(
        [python, "-c", PARSE, *arguments], capture_output=True, text=True, timeout=1800,
        env={**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1"},
    )  # fmt: skip
    assert parsed.returncode == 0, parsed.stderr[-2000:]
    assert parsed.stdout.split()[-1] == "4"


def test_eval_and_chat_run_on_it(server: Server, tmp_path: Path) -> None:
    rows = [{"problem": f"What is {i} + {i}?", "answer": str(2 * i)} for i in range(5)]
    problems = tmp_path / "five.jsonl"
    problems.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    run, env = tmp_path / "run", dict(os.environ)
    words = ["--url", server.engine, "-n", "1", "--max-tokens", "48", "--run", str(run)]
    measured = _command("eval", str(problems), *words, env=env)
    assert measured.returncode == 0, measured.stderr
    assert len(list(run.rglob("results.json"))) >= 1
    said = _command("chat", "--url", server.engine, "--max-tokens", "48", env=env, stdin="What is 2 + 2?")
    assert said.returncode == 0, said.stderr
    assert said.stdout.strip()


def test_the_agent_answers_the_openai_client(server: Server) -> None:
    with openai.OpenAI(base_url=f"{server.agent}/v1", api_key="none", max_retries=0) as client:
        [card] = client.models.list().data
        asked: dict[str, Any] = {
            "model": card.id,
            "messages": [{"role": "user", "content": "What is 2 + 2?"}],
            "max_tokens": 48,
            "seed": 3,
        }
        whole = client.chat.completions.create(**asked).choices[0]
        chunks = list(client.chat.completions.create(**asked, stream=True))
    streamed = [chunk.choices[0].delta.model_extra or {} for chunk in chunks]
    reasoning = "".join(delta.get("reasoning_content", "") for delta in streamed)
    assert reasoning.strip() == (whole.message.model_extra or {})["reasoning_content"]
    assert whole.finish_reason == chunks[-1].choices[0].finish_reason


def test_the_openai_client_streams_from_vllm_with_tools(server: Server) -> None:
    tool = {
        "type": "function",
        "function": {"name": "add", "parameters": {"type": "object", "properties": {}}},
    }
    with openai.OpenAI(base_url=f"{server.engine}/v1", api_key="none", max_retries=0) as client:
        chunks = list(
            client.chat.completions.create(
                model=client.models.list().data[0].id,
                messages=[{"role": "user", "content": "What is 2 + 2?"}],
                tools=[tool],  # type: ignore[list-item]
                max_tokens=16,
                stream=True,
            )
        )
    assert chunks[-1].choices[0].finish_reason in ("stop", "length", "tool_calls")


async def test_the_kv_cache_that_the_rollout_scheduler_reads_is_that_of_running_requests(
    url: str, prompt: list[int]
) -> None:
    engine = VLLMEngine(url)

    async def reading() -> Reading:
        async with httpx.AsyncClient(trust_env=False) as http:
            read = read_vllm((await http.get(f"{url}/metrics", timeout=60)).text)
        assert read is not None
        return read

    async def until(running: bool) -> Reading:
        async with asyncio.timeout(300):
            while True:
                read = await reading()
                if bool(read.running and read.used_share) is running:
                    return read
                await asyncio.sleep(0.05)

    assert (await until(running=False)).used_share == 0
    sampling = Sampling(temperature=1.0, max_tokens=CONTEXT - len(prompt) - 1)
    tasks = [asyncio.create_task(engine.generate(prompt, sampling)) for _ in range(32)]
    busy = await until(running=True)
    await asyncio.gather(*tasks)
    assert busy.capacity is not None
    assert busy.capacity >= CONTEXT
    # Whole blocks of running requests, none longer than the context.
    assert busy.used_share * busy.capacity <= busy.running * (CONTEXT + 256)
    ended = await until(running=False)
    assert (ended.used_share, ended.capacity) == (
        0,
        busy.capacity,
    )  # what is kept for later turns does not count
    await engine.aclose()
