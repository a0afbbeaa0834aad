"""How the judge is doing: `/health`, `/status`, and `/metrics` for Prometheus."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter, Response
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from rstar2.judge.protocol_version import PROTOCOL, conflict, is_compatible
from rstar2.judge.queue import tasks as queue
from rstar2.judge.queue.liveness import DEAD_AFTER_S, read_heartbeat
from rstar2.judge.schema import ISOLATION_ORDER, Isolation
from rstar2.judge.server.dispatcher import Dispatcher

BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 300)


async def worker_states(dispatcher: Dispatcher) -> list[dict[str, Any]]:
    """The last readable heartbeat of every worker of the queue, with its `name` and its `age_s`."""
    texts = await dispatcher.client.hgetall(queue.WORKERS)
    now = time.monotonic()
    return [
        {"name": name, **state, "age_s": dispatcher.monitor.age_s(name, now)}
        for name, text in sorted(texts.items())
        if (state := read_heartbeat(text)) is not None
    ]


def living(workers: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those of `worker_states` that are not dead."""
    return [worker for worker in workers if worker["age_s"] < DEAD_AFTER_S]


def understood(workers: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those of the workers that speak a version of the protocol that this judge understands."""
    return [worker for worker in workers if is_compatible(worker.get("protocol"))]


async def living_workers(dispatcher: Dispatcher) -> list[dict[str, Any]]:
    return living(await worker_states(dispatcher))


def weakest(workers: Sequence[dict[str, Any]]) -> Isolation | None:
    return min((worker["isolation"] for worker in workers), key=ISOLATION_ORDER.index, default=None)


async def _counts(dispatcher: Dispatcher, name: str) -> dict[str, int]:
    found = await dispatcher.client.hgetall(name)
    return {key: int(count) for key, count in sorted(found.items())}


async def _depths(dispatcher: Dispatcher) -> tuple[int, int]:
    """Programs that wait, and programs that a worker has taken."""
    pipe = dispatcher.client.pipeline(transaction=False)
    pipe.xlen(queue.TASKS)
    pipe.xpending(queue.TASKS, queue.GROUP)
    length, pending = await pipe.execute(raise_on_error=False)
    # An error for a stream that has no group yet counts as nothing taken.
    consumers = pending["consumers"] if isinstance(pending, dict) else []
    taken = sum(each["pending"] for each in consumers if each["name"] != queue.NOBODY)
    return max(0, length - taken), taken


def quantiles(values: Sequence[float]) -> dict[str, float]:
    """Median and 99th percentile in milliseconds; empty for no values."""
    if not values:
        return {}
    ordered = sorted(values)
    return {
        "p50_ms": 1000 * ordered[len(ordered) // 2],
        "p99_ms": 1000 * ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)],
    }


async def status_of(dispatcher: Dispatcher) -> dict[str, Any]:
    workers, outcomes, restarts, (waiting, taken) = await asyncio.gather(
        worker_states(dispatcher),
        _counts(dispatcher, queue.OUTCOMES),
        _counts(dispatcher, queue.RESTARTS),
        _depths(dispatcher),
    )
    live = living(workers)
    recent = list(dispatcher.recent)
    return {
        "queue": waiting,
        "num_workers": len(live),
        "running": taken,
        "rate": dispatcher.rate,
        "outcomes": outcomes,
        "restarts": restarts,
        "isolation": weakest(live),
        "exceptions": sorted({sentence for worker in live for sentence in worker.get("exceptions", ())}),
        "queue_time": quantiles([queue_s for queue_s, _ in recent]),
        "run_time": quantiles([wall_s for _, wall_s in recent]),
        "workers": workers,
    }


class _Snapshot(Collector):
    def __init__(self, status: dict[str, Any]) -> None:
        self.status = status

    def collect(self) -> list[Metric]:
        status = self.status
        runs = CounterMetricFamily("judge_runs", "Programs that ended, by outcome", labels=["outcome"])
        restarts = CounterMetricFamily(
            "judge_restarts", "Parts that died and were restarted", labels=["part"]
        )
        for family, counts in ((runs, status["outcomes"]), (restarts, status["restarts"])):
            for label, count in counts.items():
                family.add_metric([label], count)
        return [
            runs,
            restarts,
            GaugeMetricFamily("judge_queue_depth", "Programs that wait", value=status["queue"]),
            GaugeMetricFamily("judge_running", "Programs that a worker has taken", value=status["running"]),
            GaugeMetricFamily("judge_workers", "Workers that live", value=status["num_workers"]),
        ]


def metrics_router(dispatcher: Dispatcher) -> APIRouter:
    router = APIRouter()
    registry = CollectorRegistry()
    waited = Histogram("judge_queue_seconds", "Time a program waited", buckets=BUCKETS, registry=registry)
    ran = Histogram("judge_run_seconds", "Time a program ran", buckets=BUCKETS, registry=registry)

    def observe(queue_s: float, wall_s: float) -> None:
        waited.observe(queue_s)
        ran.observe(wall_s)

    dispatcher.on_finished = observe

    @router.get("/health")
    async def health() -> Response:
        speaking = await living_workers(dispatcher)
        workers = understood(speaking)
        status = "ok" if workers else "no workers"
        if speaking and not workers:
            other = speaking[0]
            them, spoken = f"worker {other['name']}", other.get("protocol")
            fault = conflict(
                "this judge", them, spoken, we_are="the judge", they_are=f"the machine of {them}"
            )
            status = ". ".join(fault)
        body = {
            "status": status,
            "workers": len(workers),
            "isolation": weakest(workers),
            "protocol": str(PROTOCOL),
        }
        return JSONResponse(body, 200 if workers else 503)

    @router.get("/status")
    async def status() -> Response:
        return JSONResponse(await status_of(dispatcher))

    @router.get("/metrics")
    async def metrics() -> Response:
        snapshot = CollectorRegistry()
        snapshot.register(_Snapshot(await status_of(dispatcher)))
        return Response(generate_latest(registry) + generate_latest(snapshot), media_type=CONTENT_TYPE_LATEST)

    return router
