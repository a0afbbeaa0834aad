"""Measures how many programs a second a judge runs if every message to and from its queue is delayed.

    python benchmarks/judge_slow_link.py                 # delays of 0, 5 and 50 ms in each direction
    python benchmarks/judge_slow_link.py --delay-ms 20

The HTTP process and both workers reach Redis over a slow link. The client's connection to the judge is not slowed.
For each delay and program, prints the median rate of three rounds of 1,000 programs, and the lowest and highest rate.
The default takes a few minutes.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from rstar2.judge.client import SyncJudgeClient
from rstar2.judge.queue.embedded_redis import EmbeddedRedis
from rstar2.judge.schema import RunRequest
from rstar2.judge.service.start import running_judge

PROGRAMS = {"trivial": "print(1)", "sleeps 20 ms": "import time\ntime.sleep(0.02)"}
ROUNDS = 3
CHUNK_BYTES = 1 << 16


async def _forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay_s: float) -> None:
    """Forward data from one connection to the other, each part after the delay."""
    loop = asyncio.get_running_loop()
    in_transit: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

    async def deliver() -> None:
        with contextlib.suppress(OSError):
            while True:
                due, data = await in_transit.get()
                await asyncio.sleep(due - loop.time())
                if not data:
                    break
                writer.write(data)
                await writer.drain()
        writer.close()

    delivering = loop.create_task(deliver())
    data = b"not the end"
    while data:
        try:
            data = await reader.read(CHUNK_BYTES)
        except OSError:
            data = b""
        in_transit.put_nowait((loop.time() + delay_s, data))
    await delivering


@contextlib.contextmanager
def slow_link(port: int, delay_s: float) -> Iterator[int]:
    """Forward a new loopback port to `port`, with a delay of `delay_s` seconds in each direction. Yields the new
    port."""
    ready: Future[tuple[int, Callable[[], object]]] = Future()

    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, back = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            writer.close()
            return
        await asyncio.gather(_forward(reader, back, delay_s), _forward(there, writer, delay_s))

    async def serve() -> None:
        stopped = asyncio.Event()
        stop = functools.partial(asyncio.get_running_loop().call_soon_threadsafe, stopped.set)
        server = await asyncio.start_server(connect, "127.0.0.1", 0)
        ready.set_result((server.sockets[0].getsockname()[1], stop))
        await stopped.wait()
        server.close()

    with ThreadPoolExecutor(1) as thread:
        serving = thread.submit(asyncio.run, serve())
        slow_port, stop = ready.result()
        try:
            yield slow_port
        finally:
            stop()
            serving.result()


def rates(delay_s: float, count: int) -> dict[str, list[float]]:
    """Return a dict from the kind of program to the programs per second of each round."""
    rates_of: dict[str, list[float]] = {name: [] for name in PROGRAMS}
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        server = EmbeddedRedis(folder / "redis", folder / "redis.log")
        server.start()
        stack.callback(server.stop)
        port = stack.enter_context(slow_link(server.port, delay_s))
        url = f"redis://:{server.password}@127.0.0.1:{port}/0"
        judge = stack.enter_context(running_judge(folder / "judge", redis_url=url))
        client = stack.enter_context(SyncJudgeClient(judge.url, judge.token))
        for _ in range(ROUNDS):
            for name, code in PROGRAMS.items():
                began = time.monotonic()
                results = client.run_many([RunRequest(code=code, timeout_s=60)] * count)
                rates_of[name].append(count / (time.monotonic() - began))
                assert all(result.outcome == "ok" for result in results)
    return rates_of


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--delay-ms", type=float, nargs="*", default=[0.0, 5.0, 50.0], help="delays in each direction"
    )
    parser.add_argument("--programs", type=int, default=1000)
    arguments = parser.parse_args()
    for delay_ms in arguments.delay_ms:
        for name, per_round in rates(delay_ms / 1000, arguments.programs).items():
            middle = sorted(per_round)[len(per_round) // 2]
            print(
                f"{delay_ms:g} ms in each direction, {name}: {middle:.0f} programs a second "
                f"({min(per_round):.0f} to {max(per_round):.0f})",
                flush=True,
            )


if __name__ == "__main__":
    main()
