"""Measures how long `rstar2 serve` takes to start vLLM, and the tokens per second with several requests in flight.

    python benchmarks/serve.py models/smollm2 --python .venv-vllm/bin/python
    python benchmarks/serve.py models/smollm2 --url http://127.0.0.1:8000        # a running server; no start is timed
    python benchmarks/serve.py Qwen3-4B --in-flight 1 32 256 -- --load-format dummy     # random weights

Every request has a different prompt of 64 tokens, and is answered with exactly `--tokens` tokens. Options after `--` go
to vLLM. Prints a Markdown table: the seconds until the server is ready, and the tokens per second for each number of
requests in flight. Most of the time is vLLM's start, which takes minutes.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager

import openai

from rstar2.machine import nvidia_gpus
from rstar2.processes import free_port

PROMPT = 64


@contextmanager
def started(model: str, python: str | None, extra: list[str]) -> Iterator[tuple[str, float]]:
    """Serve the model until the block ends. Yields the URL, and the seconds until the server was ready."""
    port = free_port()
    words = [model, "--port", str(port), "--detach", "--ready-s", "3600"]
    words += ["--python", python or sys.executable, *(["--", *extra] if extra else [])]
    with tempfile.TemporaryDirectory() as state:
        env = {**os.environ, "RSTAR2_STATE": state}
        command = [sys.executable, "-m", "rstar2", "serve"]
        began = time.monotonic()
        subprocess.run([*command, *words], env=env, check=True, stdout=subprocess.DEVNULL)
        try:
            yield f"http://127.0.0.1:{port}", time.monotonic() - began
        finally:
            subprocess.run([*command, "down"], env=env, check=True, stdout=subprocess.DEVNULL)


async def rate(url: str, in_flight: int, tokens: int) -> float:
    """Return the tokens per second of `in_flight` concurrent requests."""
    draw = random.Random(in_flight)
    async with openai.AsyncOpenAI(
        base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=3600
    ) as client:
        [card] = (await client.models.list()).data

        async def one() -> int:
            answer = await client.completions.create(
                model=card.id,
                prompt=[draw.randrange(100, 400) for _ in range(PROMPT)],
                max_tokens=tokens,
                extra_body={"ignore_eos": True},
            )
            assert answer.usage is not None
            return int(answer.usage.completion_tokens)

        await one()  # the first request is slower
        began = time.monotonic()
        tokens_written = await asyncio.gather(*(one() for _ in range(in_flight)))
        return sum(tokens_written) / (time.monotonic() - began)


def measure(name: str, url: str, ready_s: float | None, many: list[int], tokens: int) -> None:
    rates = [asyncio.run(rate(url, in_flight, tokens)) for in_flight in many]
    ready = "" if ready_s is None else f"{ready_s:.0f}"
    print(f"| {name} | {ready} | {' | '.join(f'{each:.1f}' for each in rates)} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", help="a model's folder or its name on the Hub")
    parser.add_argument("--python", help="the interpreter of vLLM's environment")
    parser.add_argument("--tokens", type=int, default=64, help="tokens of each completion")
    parser.add_argument("--in-flight", nargs="+", type=int, default=[1, 8, 32])
    parser.add_argument("--url", help="measure the server at this URL, and start none")
    words = sys.argv[1:]
    cut = words.index("--") if "--" in words else len(words)
    options, extra = parser.parse_args(words[:cut]), words[cut + 1 :]
    many = options.in_flight
    print(f"| server | seconds to readiness | {' | '.join(f'{n} in flight' for n in many)} |")
    print("|---|" + "---|" * (1 + len(many)))
    if options.url:
        measure(options.url, options.url, None, many, options.tokens)
        return
    with started(options.model, options.python, extra) as (url, ready_s):
        measure("vLLM", url, ready_s, many, options.tokens)
    cards = "".join(f", {gpu.name}" for gpu in nvidia_gpus())
    print(f"\n{os.cpu_count()} processors, load {os.getloadavg()[0]:.1f}{cards}")


if __name__ == "__main__":
    main()
