"""The endpoints that report the judge's state: `/health`, `/status`, and `/metrics` for Prometheus."""

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
    """Returns the last heartbeat of every worker of the queue. Leaves out heartbeats that cannot be read.

    Adds the worker's name (`name`) and the seconds since the heartbeat last changed (`age_s`) to each heartbeat.
    """
    texts = await dispatcher.client.hgetall(queue.WORKERS)
    now = time.monotonic()
    return [
        {"name": name, **state, "age_s": dispatcher.monitor.age_s(name, now)}
        for name, text in sorted(texts.items())
        if (state := read_heartbeat(text)) is not None
    ]


def living(workers: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns those workers that are not dead. `workers` is the return value of `worker_states`."""
    return [worker for worker in workers if worker["age_s"] < DEAD_AFTER_S]


def compatible(workers: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns those workers whose protocol version is compatible with this judge's version."""
    return [worker for worker in workers if is_compatible(worker.get("protocol"))]


async def living_workers(dispatcher: Dispatcher) -> list[dict[str, Any]]:
    return living(await worker_states(dispatcher))


def weakest_isolation(workers: Sequence[dict[str, Any]]) -> Isolation | None:
    return min((worker["isolation"] for worker in workers), key=ISOLATION_ORDER.index, default=None)


async def _counts(dispatcher: Dispatcher, name: str) -> dict[str, int]:
    counts = await dispatcher.client.hgetall(name)
    return {key: int(count) for key, count in sorted(counts.items())}


async def _depths(dispatcher: Dispatcher) -> tuple[int, int]:
    """Returns the number of programs that wait in the queue, and the number of programs that workers are running."""
    pipe = dispatcher.client.pipeline(transaction=False)
    pipe.xlen(queue.TASKS)
    pipe.xpending(queue.TASKS, queue.GROUP)
    length, pending = await pipe.execute(raise_on_error=False)
    # Redis replies with an error if the stream has no group yet. No worker has taken a program then.
    consumers = pending["consumers"] if isinstance(pending, dict) else []
    running = sum(each["pending"] for each in consumers if each["name"] != queue.NOBODY)
    return max(0, length - running), running


def quantiles(values: Sequence[float]) -> dict[str, float]:
    """Converts times in seconds to their median and 99th percentile in milliseconds.

    Returns an empty dictionary if there are no times.
    """
    if not values:
        return {}
    ordered = sorted(values)
    return {
        "p50_ms": 1000 * ordered[len(ordered) // 2],
        "p99_ms": 1000 * ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)],
    }


async def status_of(dispatcher: Dispatcher) -> dict[str, Any]:
    """Returns the answer to `/status`."""
    workers, outcomes, restarts, (waiting, running) = await asyncio.gather(
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
        "running": running,
        "rate": dispatcher.rate,
        "outcomes": outcomes,
        "restarts": restarts,
        "isolation": weakest_isolation(live),
        "exceptions": sorted({sentence for worker in live for sentence in worker.get("exceptions", ())}),
        "recent_programs": len(recent),
        "queue_time": quantiles([queue_s for queue_s, _ in recent]),
        "run_time": quantiles([wall_s for _, wall_s in recent]),
        "workers": workers,
    }


class _Snapshot(Collector):
    def __init__(self, status: dict[str, Any]) -> None:
        self.status = status

    def collect(self) -> list[Metric]:
        status = self.status
        runs = CounterMetricFamily("judge_runs", "Finished programs, by outcome", labels=["outcome"])
        restarts = CounterMetricFamily(
            "judge_restarts", "Restarts of processes that died, by part of the judge", labels=["part"]
        )
        for family, counts in ((runs, status["outcomes"]), (restarts, status["restarts"])):
            for label, count in counts.items():
                family.add_metric([label], count)
        return [
            runs,
            restarts,
            GaugeMetricFamily("judge_queue_depth", "Programs that wait for a worker", value=status["queue"]),
            GaugeMetricFamily("judge_running", "Programs that a worker has taken", value=status["running"]),
            GaugeMetricFamily("judge_workers", "Living workers", value=status["num_workers"]),
        ]


def metrics_router(dispatcher: Dispatcher) -> APIRouter:
    router = APIRouter()
    registry = CollectorRegistry()
    queue_time = Histogram(
        "judge_queue_seconds", "Seconds a program waited for a worker", buckets=BUCKETS, registry=registry
    )
    run_time = Histogram(
        "judge_run_seconds", "Wall-clock seconds a program ran", buckets=BUCKETS, registry=registry
    )

    def observe(queue_s: float, wall_s: float) -> None:
        queue_time.observe(queue_s)
        run_time.observe(wall_s)

    dispatcher.on_finished = observe

    @router.get("/health")
    async def health() -> Response:
        live = await living_workers(dispatcher)
        workers = compatible(live)
        status = "ok" if workers else "no workers"
        if live and not workers:
            worker = live[0]
            name, version = f"worker {worker['name']}", worker.get("protocol")
            message_and_hint = conflict(
                "this judge", name, version, our_update="the judge", their_update=f"the machine of {name}"
            )
            status = ". ".join(message_and_hint)
        body = {
            "status": status,
            "workers": len(workers),
            "isolation": weakest_isolation(workers),
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
