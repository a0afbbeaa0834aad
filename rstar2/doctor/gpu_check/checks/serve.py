"""Checks `rstar2 serve` with vLLM: the tokens per second, and a forced tool call.

A random model writes no tool call. vLLM is therefore forced to generate the text of a tool call, so that vLLM's sampler
and tool parser, rstar2's engine, the agent loop and the judge all handle a real call.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rstar2.doctor.gpu_check.check import Check, CheckFailed, Measurements, NotRun, Settings
from rstar2.doctor.gpu_check.tools import commands
from rstar2.doctor.gpu_check.tools.device import torch_device

if TYPE_CHECKING:
    from rstar2.engines.vllm import VLLMEngine
    from rstar2.loop.engine import Generation, OnTokens, Sampling
    from rstar2.loop.turns.codec import ChatCodec

READY_S = 900.0
"""Maximum number of seconds that vLLM may take to load, compile and capture its graphs."""
POLL_S = 0.5
AT_ONCE, CPU_AT_ONCE = 128, 16
"""Number of concurrent requests in the measurement of throughput, on a GPU and on a CPU."""
TOKENS, CPU_TOKENS = 256, 32
"""Number of tokens that each request generates, on a GPU and on a CPU."""
CODE, OUTPUT = "print(123 * 456)", "56088"
REMEDY = "The logs of vLLM are in gpu-check-logs/vllm. Report the end of the engine's log, with the version of vLLM."


def run(settings: Settings, measurements: Measurements) -> None:
    from rstar2.doctor.gpu_check.tools.model import CONTEXT, random_model
    from rstar2.processes import free_port
    from rstar2.serve.vllm import find_vllm, install_hint, vllm_python

    torch_device(settings)
    vllm = find_vllm(vllm_python())
    if vllm is None:
        raise NotRun("not installed: vllm", install_hint())
    if settings.device == "cpu" and vllm.distribution == "vllm":
        raise NotRun("vLLM is installed, but only its CPU build runs without a GPU", install_hint())
    # The server's logs go to the check's logs, and the user's own servers do not interfere.
    os.environ["RSTAR2_STATE"] = str(settings.logs / "vllm")
    model, port = random_model(settings), free_port()
    words = [
        "serve",
        str(model),
        "--port",
        str(port),
        "--max-model-len",
        str(CONTEXT),
        "--ready-s",
        str(READY_S),
    ]
    if settings.device == "cpu":
        words += ["--kv-gib", "1", "--", "--enforce-eager", "--dtype", "float32"]
    else:
        words += ["--tp", "1", "--replicas", "1"]
    measurements.add("vLLM", f"{vllm.distribution} {vllm.version}")
    with commands.started(settings, CHECK.name, words) as process:
        url = f"http://127.0.0.1:{port}"
        begun_at = time.monotonic()
        _wait_until_it_answers(settings, process, url)
        measurements.add("seconds until it answers", time.monotonic() - begun_at, "s")
        asyncio.run(_measure(settings, model, url, measurements))
    speeds = (
        f"{each.value:,.0f} {each.unit}, {each.name}"
        for each in measurements.numbers
        if each.unit == "tokens/s"
    )
    measurements.summary = "; ".join(["a forced tool call was parsed and run", *speeds])


def _wait_until_it_answers(settings: Settings, process: subprocess.Popen[bytes], url: str) -> None:
    """Wait until the server answers.

    Raises the error of `commands.command_failed` if the server ends before it answers. The server gives up by itself
    after `READY_S` seconds.
    """
    from rstar2.processes import answers

    while not answers(url):
        if (code := process.poll()) is not None:
            raise commands.command_failed(settings, CHECK.name, "serve", code)
        time.sleep(POLL_S)


async def _measure(settings: Settings, model: Path, url: str, measurements: Measurements) -> None:
    from rstar2.engines.vllm import VLLMEngine
    from rstar2.loop.engine import EngineError
    from rstar2.loop.turns import tags
    from rstar2.loop.turns.choose import load_codec

    codec = load_codec(model)
    prompt = codec.prompt(codec.format.messages("What is 123 * 456?"))
    text = f"Use Python.{tags.REASON_END}\n{_call()}"
    forced = _forcing_fields(text)
    free, forcing = VLLMEngine(url), VLLMEngine(url, stop_token_ids=[codec.end_id], more=forced)
    try:
        await _add_speeds(settings, free, prompt, measurements)
        name = (await free.served()).model
        await _check_parser(url, name, codec, forced)
        await _check_loop(settings, FirstForced(forcing, free), codec, prompt, measurements)
    except EngineError as error:
        raise CheckFailed(error.message, error.hint or REMEDY) from error
    finally:
        await free.aclose()
        await forcing.aclose()


def _forcing_fields(text: str) -> dict[str, Any]:
    """Returns the request fields that force vLLM to generate exactly this text."""
    # A JSON string is a valid literal of a grammar. The field `choice` would be simpler, but vLLM 0.24 does not escape
    # the line breaks of a choice. Its grammar is then invalid, and vLLM silently uses a backend that ends the request
    # with HTTP 500.
    return {"structured_outputs": {"grammar": f"root ::= {json.dumps(text)}"}}


def _call() -> str:
    from rstar2.loop.tools.python_code_with_standard_io import NAME
    from rstar2.loop.turns import tags

    return tags.call_text(NAME, {"code": CODE, "input": ""})


async def _add_speeds(
    settings: Settings, engine: VLLMEngine, prompt: Sequence[int], measurements: Measurements
) -> None:
    from rstar2.loop.engine import Sampling

    on_gpu = settings.device == "cuda"
    many, tokens = (AT_ONCE, TOKENS) if on_gpu else (CPU_AT_ONCE, CPU_TOKENS)
    for count in (1, many):
        # The first round is not counted, because some code is compiled at its first use.
        for rate in [await _rate(engine, prompt, count, Sampling(1.0, max_tokens=tokens)) for _ in range(2)][
            1:
        ]:
            measurements.add(f"speed with {count} in flight", rate, "tokens/s")


async def _rate(engine: VLLMEngine, prompt: Sequence[int], count: int, sampling: Sampling) -> float:
    """Returns how many tokens per second `count` concurrent requests generate together."""
    begun_at = time.monotonic()
    turns = await asyncio.gather(*(engine.generate(prompt, sampling) for _ in range(count)))
    return sum(len(turn.token_ids) for turn in turns) / (time.monotonic() - begun_at)


async def _check_parser(url: str, name: str, codec: ChatCodec, forced: dict[str, Any]) -> None:
    """Raise CheckFailed if the server's tool parser does not find the call in the forced text, and EngineError if the
    server does not answer the request with HTTP status 200.
    """
    from rstar2.engines.openai_server import OpenAIServer
    from rstar2.loop.tools.python_code_with_standard_io import NAME, python_code_with_standard_io

    body = {
        "model": name,
        "messages": codec.format.messages("What is 123 * 456?"),
        "tools": [python_code_with_standard_io.schema],
        "max_tokens": 256,
        **forced,
    }
    server = OpenAIServer(url)
    try:
        answer = await server.post("chat/completions", body)
    finally:
        await server.aclose()
    message = answer["choices"][0]["message"]
    calls = [each["function"] for each in message.get("tool_calls") or []]
    parsed_calls = [(each["name"], json.loads(each["arguments"]).get("code")) for each in calls]
    if parsed_calls != [(NAME, CODE)]:
        raise CheckFailed(
            f"vLLM was forced to write a tool call, but its parser found {parsed_calls}; its answer was {message}",
            REMEDY,
        )


class FirstForced:
    """An engine that is forced to call the tool in its first turn, and is free in later turns."""

    def __init__(self, first: VLLMEngine, later: VLLMEngine) -> None:
        self._engines = [first, later]

    @property
    def name(self) -> str:
        return self._engines[-1].name

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, on_tokens: OnTokens | None = None
    ) -> Generation:
        engine = self._engines[0]
        self._engines = self._engines[-1:]
        return await engine.generate(prompt_ids, sampling, on_tokens)

    async def aclose(self) -> None:
        """Do nothing, because the caller closes the engines."""


async def _check_loop(
    settings: Settings,
    engine: FirstForced,
    codec: ChatCodec,
    prompt: Sequence[int],
    measurements: Measurements,
) -> None:
    """Raise CheckFailed if the agent loop does not read the call from the tokens, or the judge does not run it."""
    from rstar2.judge.client import JudgeClient
    from rstar2.judge.service.start import running_judge
    from rstar2.loop.agent import Limits, rollout
    from rstar2.loop.engine import Sampling
    from rstar2.loop.toolbox import Toolbox

    with running_judge(settings.work / "judge", workers=1, preload=False) as judge:
        async with Toolbox(JudgeClient(judge.url, judge.token), codec.format).opened() as tools:
            trace = await rollout(
                prompt,
                engine=engine,
                tools=tools,
                codec=codec,
                limits=Limits(max_turns=2, max_tokens=256),
                sampling=Sampling(1.0),
            )
        measurements.add("isolation of the judge", judge.isolation)
    calls = [(call.status, call.output.strip()) for call in trace.calls]
    if calls != [("ok", OUTPUT)]:
        raise CheckFailed(
            f"the model was forced to call {CODE!r}, but the calls were {calls}; its turn was {trace.turns[0].text!r}",
            REMEDY,
        )


CHECK = Check("serve", "vLLM and a tool call", run, limit_s=1200.0)
