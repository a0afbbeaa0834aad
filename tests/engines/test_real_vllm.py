"""The engine and `rstar2 serve` against vLLM itself, where one is installed.

vLLM needs an environment of its own, so these tests are collected only where RSTAR2_VLLM_PYTHON names its interpreter:

    the commands that `rstar2 doctor` prints for vLLM, then
    RSTAR2_VLLM_PYTHON=.venv-vllm/bin/python python -m pytest tests/engines/test_real_vllm.py
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from rstar2.data import builtin
from rstar2.demo.tiny import TinyModel, make_tiny_model
from rstar2.engines.base import Generation, Sampling
from rstar2.engines.vllm import VLLMEngine
from rstar2.prompts import ChatCodec, load_codec
from rstar2.serve import ServeSettings, find_vllm, running_server, vllm_command
from rstar2.train.scheduler.metrics import Reading, read_vllm

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
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


@pytest.fixture(scope="module")
def url(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    python = os.environ["RSTAR2_VLLM_PYTHON"]
    vllm = find_vllm(python)
    assert vllm is not None, f"{python} has no vLLM"
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = int(listener.getsockname()[1])
    extra = ("--enforce-eager", "--dtype", "float32")
    settings = ServeSettings(str(model), port=port, max_model_len=CONTEXT, kv_gib=1, extra=extra)
    command, environment = vllm_command(vllm, settings)
    log = tmp_path_factory.mktemp("log") / "vllm.log"
    with running_server(command, environment, settings.url, log, ready_s=600):
        yield settings.url


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
