"""Sends small programs to a judge at random times, and prints the seconds that each took, sorted, as JSON.

    python benchmarks/support/judge_load.py --url http://127.0.0.1:8088 --rate 100

It runs for `--seconds` (6 by default). The client is that of the checkout that is first on PYTHONPATH.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import time

from rstar2.judge.client import JudgeClient
from rstar2.judge.schema import RunRequest

CODE, STDOUT = "print(6 * 7)", "42\n"


async def latencies(url: str, rate: float, seconds: float, seed: int = 7) -> list[float]:
    """Run programs that arrive at random at `rate` per second, for `seconds`.

    Returns the latency of each program in seconds, sorted.
    """
    seconds_each: list[float] = []
    dice = random.Random(seed)

    async def one(client: JudgeClient) -> None:
        started = time.perf_counter()
        result = await client.run(RunRequest(code=CODE))
        seconds_each.append(time.perf_counter() - started)
        if result.stdout != STDOUT:
            raise RuntimeError(f"the judge answered {result!r} instead of {STDOUT!r}")

    async with JudgeClient(url) as client, asyncio.TaskGroup() as group:
        due = time.perf_counter()
        end = due + seconds
        while due < end:
            due += dice.expovariate(rate)
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            group.create_task(one(client))
    return sorted(seconds_each)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--url", required=True)
    parser.add_argument("--rate", type=float, required=True, help="programs a second")
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--seed", type=int, default=7)
    options = parser.parse_args()
    print(json.dumps(asyncio.run(latencies(options.url, options.rate, options.seconds, options.seed))))


if __name__ == "__main__":
    main()
