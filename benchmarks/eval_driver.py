"""Measures whether the evaluation keeps an engine busy: its tokens per second, compared with a bare load generator.

    python benchmarks/eval_driver.py                                 two rounds of each, 256 requests in flight
    python benchmarks/eval_driver.py --samples 20000 --rounds 1      one long run, to see whether memory stays flat

Both send the same requests to `support/token_server.py`, a stand-in for vLLM. The load generator speaks HTTP over plain
sockets and only counts the tokens of the completions. The evaluation parses calls, runs tools, grades, and writes
traces and statistics.

Prints JSON: the tokens per second of each, their ratio, the CPU share of the evaluation, and its memory after a quarter
of the samples and at the end. The server paces its tokens in real time, so the first command takes about eight minutes
on any machine, and the second about forty.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from rstar2.data.problem import Problem
from rstar2.engines.oracle import byte_codec
from rstar2.engines.vllm import VLLMEngine
from rstar2.eval.grader import GraderPool
from rstar2.eval.progress import Progress
from rstar2.eval.run import evaluate
from rstar2.eval.settings import EvalSettings, sample_seed
from rstar2.loop.engine import Sampling
from rstar2.loop.trace import ToolCall

PROBLEMS = [Problem(f"p{at}", f"What is {at} plus one less than it?", "7") for at in range(100)]
TURN_SEED_STEP = 1_000_003
"""Difference between the seeds of two consecutive turns of a rollout, the same as in the agent loop."""


class InstantTools:
    """Tools whose calls succeed immediately, without a judge."""

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[InstantTools]:
        yield self

    async def run(self, name: str, arguments: dict[str, Any]) -> ToolCall:
        return ToolCall(name=name, arguments=arguments, status="ok", output="7")


async def bare(url: str, samples: int, in_flight: int) -> tuple[int, float]:
    """Run the bare load generator. Returns the tokens that it received and the seconds that it took."""
    codec = byte_codec()
    prompts = [codec.prompt(codec.format.messages(problem.problem)) for problem in PROBLEMS]
    jobs = iter(
        [(at, sample_seed(0, PROBLEMS[at].id, n)) for n in range(samples) for at in range(len(PROBLEMS))]
    )
    body = {
        "model": "paced",
        "max_tokens": 30_000,
        **Sampling().in_full,
        "logprobs": 0,
        "return_token_ids": True,
        "stop_token_ids": codec.stop_ids,
    }
    host, port = url.removeprefix("http://").split(":")
    tokens = 0

    async def work() -> None:
        nonlocal tokens
        reader, writer = await asyncio.open_connection(host, int(port), limit=1 << 24)
        for at, seed in jobs:
            for turn in range(2 if seed % 2 else 1):
                request = {**body, "prompt": prompts[at], "seed": (seed + turn * TURN_SEED_STEP) % (1 << 31)}
                content = json.dumps(request).encode()
                head = f"POST /v1/completions HTTP/1.1\r\ncontent-length: {len(content)}\r\n\r\n"
                writer.write(head.encode() + content)
                answer = await reader.readuntil(b"\r\n\r\n")
                length = int(answer.rpartition(b"content-length:")[2])
                tokens += len(json.loads(await reader.readexactly(length))["choices"][0]["token_ids"])
        writer.close()

    started = time.monotonic()
    await asyncio.gather(*(work() for _ in range(in_flight)))
    return tokens, time.monotonic() - started


async def driven(
    url: str, samples: int, in_flight: int, out: Path, memory: list[tuple[int, float]]
) -> tuple[int, float]:
    """Run the evaluation. Returns the tokens that it received and the seconds that it took.

    While it runs, (finished samples, resident MiB) pairs are appended to `memory`.
    """
    codec = byte_codec()
    engine = VLLMEngine(url, stop_token_ids=codec.stop_ids)
    last: list[Progress] = []

    def on_progress(progress: Progress) -> None:
        last[:] = [progress]
        memory.append((progress.done, resident_mib()))

    started = time.monotonic()
    with GraderPool() as grader:
        (result,) = await evaluate(
            {"": (PROBLEMS, out)},
            engine=engine,
            codec=codec,
            tools=InstantTools(),
            grader=grader,
            settings=EvalSettings(samples=samples, in_flight=in_flight),
            on_progress=on_progress,
        )
        wall = time.monotonic() - started
    await engine.aclose()
    assert result.complete
    assert result.summary["accuracy"] == 1.0
    return last[0].tokens, wall


def resident_mib() -> float:
    fields = Path("/proc/self/statm").read_text().split()
    return int(fields[1]) * 4096 / (1 << 20)


@contextmanager
def token_server(pace: float, mean_tokens: int) -> Iterator[str]:
    script = Path(__file__).parent / "support" / "token_server.py"
    command = [sys.executable, str(script), "--pace", str(pace), "--mean-tokens", str(mean_tokens)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        assert server.stdin is not None
        yield server.stdout.readline().strip()
        server.stdin.close()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--samples", type=int, default=2000, help="rollouts of each of the two per round")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--in-flight", type=int, default=256)
    parser.add_argument("--pace", type=float, default=40.0, help="tokens per second of one request")
    parser.add_argument("--mean-tokens", type=int, default=400, help="mean tokens of a turn")
    options = parser.parse_args()
    each = max(1, options.samples // len(PROBLEMS))
    rates: dict[str, list[float]] = {"bare": [], "driven": []}
    memory: list[tuple[int, float]] = []
    with token_server(options.pace, options.mean_tokens) as url, tempfile.TemporaryDirectory() as folder:
        for number in range(options.rounds):
            tokens, wall = asyncio.run(bare(url, each, options.in_flight))
            rates["bare"].append(tokens / wall)
            memory.clear()
            cpu = time.process_time()
            tokens, wall = asyncio.run(
                driven(url, each, options.in_flight, Path(folder) / str(number), memory)
            )
            rates["driven"].append(tokens / wall)
            cpu = (time.process_time() - cpu) / wall
    done = [at for at, _ in memory]
    quarter = next(mib for at, mib in memory if at >= done[-1] / 4)
    print(
        json.dumps(
            {
                "in_flight": options.in_flight,
                "samples": each * len(PROBLEMS),
                "tokens_per_s": {name: [round(rate) for rate in values] for name, values in rates.items()},
                "driven_over_bare": round(median(rates["driven"]) / median(rates["bare"]), 4),
                "driver_cpu_share": round(cpu, 3),
                "resident_mib": {"after_a_quarter": round(quarter), "at_the_end": round(memory[-1][1])},
            },
            indent=2,
        )
    )


if __name__ == "__main__":
    main()
