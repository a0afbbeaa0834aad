"""Measures how lost tool calls change what training learns: runs the demo with and without lost calls.

    python benchmarks/lost_calls.py                          seed 1: first with no lost calls, then with 5 % lost
    python benchmarks/lost_calls.py --seeds 1 2 3 --share 0.1

A proxy between the demo and its judge replaces some results with the outcome `lost`. A real judge answers `lost` if
three workers died while they ran the same program. An evaluation repeats a lost call. In training, a rollout with a
lost call is removed before Resampling on Correct (RoC) selects.

Prints a table with two rows per seed: the rollouts that lost a call, the accuracy after SFT and after each stage, and
the share of failed calls at the end. Each row is a run of the demo, which takes minutes. A killed run resumes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import aiohttp
from aiohttp import web
from rich.table import Table

from rstar2.cli.common import out
from rstar2.cli.training import ProgressRows
from rstar2.demo.pipeline import run_demo
from rstar2.demo.recipe import demo_plan
from rstar2.eval.settings import JudgeChoice
from rstar2.judge.service.start import running_judge
from rstar2.runs import open_run
from rstar2.train.records.steps import step_metrics

STAGES = ("stage1", "stage2", "stage3")


class LosingProxy:
    """A proxy that forwards requests to a judge, and replaces a share of its results with the outcome `lost`."""

    def __init__(self, judge: str, token: str | None, share: float) -> None:
        self._judge, self._share = judge, share
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._random = random.Random(0)

    async def _stream(self, request: web.Request) -> web.WebSocketResponse:
        client = web.WebSocketResponse(max_msg_size=0)
        await client.prepare(request)
        url = f"{self._judge}/v1/runs/stream"
        async with (
            aiohttp.ClientSession(headers=self._headers) as http,
            http.ws_connect(url, max_msg_size=0) as judge,
        ):

            async def to_judge() -> None:
                async for message in client:
                    await judge.send_str(message.data)
                await judge.close()

            forwarding = asyncio.create_task(to_judge())
            try:
                async for message in judge:
                    await client.send_str(
                        json.dumps([self._or_lost(each) for each in json.loads(message.data)])
                    )
            finally:
                forwarding.cancel()
        return client

    def _or_lost(self, response: dict[str, object]) -> dict[str, object]:
        if response.get("result") and self._random.random() < self._share:
            lost = {"id": response["id"], "outcome": "lost", "stderr": "lost by the benchmark"}
            return {**response, "result": lost}
        return response

    async def _forward(self, request: web.Request) -> web.Response:
        async with (
            aiohttp.ClientSession(headers=self._headers) as http,
            http.request(
                request.method, f"{self._judge}{request.rel_url}", data=await request.read()
            ) as answer,
        ):
            return web.Response(
                body=await answer.read(), status=answer.status, content_type=answer.content_type
            )

    async def start(self) -> str:
        """Listen on a free port of the loopback interface. Returns the URL."""
        app = web.Application()
        app.router.add_get("/v1/runs/stream", self._stream)
        app.router.add_route("*", "/{path:.*}", self._forward)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        return f"http://{host}:{port}"


@contextmanager
def losing(judge: str, token: str | None, share: float) -> Iterator[str]:
    """Run a LosingProxy in front of a judge until the block ends. Yields its URL."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        yield asyncio.run_coroutine_threadsafe(LosingProxy(judge, token, share).start(), loop).result(30)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(30)


def measure(seed: int, share: float, folder: Path) -> list[str]:
    """Run the demo once. Returns a row of the table: lost rollouts, and accuracies after SFT and each stage."""
    plan = demo_plan("demo", seed, ["rl.judge.max_lost_share=0.5"])
    with (
        open_run(folder, "demo", plan.config()) as run,
        running_judge(folder / "judge", preload=False) as judge,
        losing(judge.url, judge.token, share) as url,
        ProgressRows() as progress,
    ):
        summary = run_demo(plan, run, False, progress, JudgeChoice(url))
    steps = [step for stage in STAGES for step in step_metrics(folder / stage).values()]
    lost, rollouts = (sum(step[f"rstar2/{name}"] for step in steps) for name in ("lost_rollouts", "rollouts"))
    failed = summary["phases"][-1]["failed_call_ratio_correct"]
    accuracies = [f"{phase['accuracy']:.1%}" for phase in summary["phases"]]
    return [str(seed), f"{share:.0%}", f"{lost:.0f} of {rollouts:.0f}", *accuracies, f"{failed:.1%}"]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument(
        "--share", type=float, default=0.05, help="share of the judge's results that are lost"
    )
    parser.add_argument("--folder", type=Path, default=Path("runs/lost-calls"))
    options = parser.parse_args()
    table = Table(
        "seed", "calls lost", "rollouts that lost a call", "sft", *STAGES, "failed calls at the end"
    )
    for seed in options.seeds:
        for share in (0.0, options.share):
            table.add_row(*measure(seed, share, options.folder / f"seed{seed}-{share:g}"))
    out.print(table)


if __name__ == "__main__":
    main()
