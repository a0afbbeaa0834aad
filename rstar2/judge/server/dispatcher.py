"""The HTTP process's side of the queue: puts programs in, waits for their results, takes them back.

Everything that is asked within one turn of the event loop goes to Redis in one exchange. One task listens to
what was finished; a sweep every few seconds looks after what it may have missed, and queues again what a Redis
that lost its data has forgotten.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any

import redis.asyncio
from redis.asyncio.retry import Retry
from redis.backoff import ExponentialBackoff
from redis.exceptions import RedisError, ResponseError

from rstar2.judge.queue import tasks as queue
from rstar2.judge.queue.liveness import CHECK_EVERY_S, LivenessMonitor
from rstar2.judge.queue.redis_connection import RedisConnection, Subscription
from rstar2.judge.schema import RunResult

MAX_WAIT_S = 3600.0
"""A program that is not done this long after its own time limit is answered `lost`."""
MAX_WAITING_BYTES = 2 << 30
"""Programs this process holds for the queue; from there on, new ones are answered 429."""
LONGEST_SENT_AWAY_S = 10.0
"""At most so much is said in `Retry-After`."""
PIPELINE = 256
COMMAND_BYTES = 32 << 20
"""Programs sent in one command, if it is more than one; Redis takes a GiB at most."""
SWEEP_S = 3.0
DELIVERED_TOGETHER = 64
"""So many delivered results are told to Redis together, or those of a sweep."""
LONGEST_RETRY_S = 0.25
RECENT = 2000
log = logging.getLogger(__name__)


class QueueFull(Exception):
    """The queue holds as much as it may.

    Args:
        retry_after_s: when to ask again.
    """

    def __init__(self, retry_after_s: float) -> None:
        super().__init__(f"the queue is full, try again in {retry_after_s:.0f} s")
        self.retry_after_s = retry_after_s


class PendingRun:
    """One program somebody waits for.

    Args:
        run_id: its id.
        body: what the worker gets, as JSON.
        timeout_s: its own time limit.
        worker: the only one that can run it; None: any.
    """

    def __init__(self, run_id: str, body: str, timeout_s: float, worker: str | None = None) -> None:
        self.id = run_id
        self.body = body
        self.worker = worker
        self.result: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """The result as JSON."""
        self.waiters = 0
        self.sent_at: float | None = None
        """Monotonic seconds; None while it has still to be sent."""
        self.deadline = time.monotonic() + timeout_s + MAX_WAIT_S


class Dispatcher:
    """See the module. All methods belong to one event loop.

    Args:
        redis_url: the queue.
        max_queued: programs in the queue from which on `QueueFull` is raised.
    """

    def __init__(self, redis_url: str, max_queued: int) -> None:
        self.client: Any = redis.asyncio.Redis.from_url(
            redis_url,
            decode_responses=True,
            socket_timeout=5,
            socket_connect_timeout=2,
            # Everything said here may be said twice; connections of the pool may be older than the server.
            retry=Retry(ExponentialBackoff(cap=0.2, base=0.05), 3),
        )
        self.commands = RedisConnection(redis_url)
        """For `_send` alone."""
        self.notices = Subscription(redis_url, queue.DONE)
        self.max_queued = max_queued
        self.depth = 0
        """Programs queued or running, as Redis last said."""
        self.rate = 0.0
        """Programs finished a second, recently, in the whole queue."""
        self.finished = 0
        """Programs of the whole queue that were told to be finished, without those a broken connection missed."""
        self.recent: deque[tuple[float, float]] = deque(maxlen=RECENT)
        """(queue_s, wall_s) of what was finished last in the whole queue."""
        self.on_done: Callable[[float, float], None] = lambda queue_s, wall_s: None
        self.waiting: dict[str, PendingRun] = {}
        self.waiting_bytes = 0
        self.unsent: list[PendingRun] = []
        self.dropped: list[str] = []
        self.delivered: list[str] = []
        self.wake = asyncio.Event()
        self.tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        loops = (self._send, self._follow, self._sweep, self._look_around)
        self.tasks = [asyncio.create_task(self._forever(loop)) for loop in loops]

    async def close(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        for connection in (self.commands, self.notices):
            await connection.close()
        await self.client.aclose()

    def admit(self, count: int) -> None:
        """Pass if so many programs more may be queued: all or none, so that large requests do not starve.

        Raises:
            QueueFull: the queue holds already what it may.
        """
        full = max(self.depth, len(self.waiting)) >= self.max_queued
        if count and (full or self.waiting_bytes > MAX_WAITING_BYTES):
            drained_s = self.depth / self.rate if self.rate else 0.0
            # Not when it will be empty: the workers must not run dry before those sent away come back.
            raise QueueFull(min(LONGEST_SENT_AWAY_S, max(1.0, drained_s / 4)))

    @contextmanager
    def holding(self, asked: Sequence[PendingRun]) -> Iterator[list[PendingRun]]:
        """Queue programs for the length of the block; then take back those nobody else waits for.

        An id that is known already is not run again: the one yielded in its place is the earlier one.

        Raises:
            QueueFull: nothing was queued.
        """
        self.admit(len(asked))
        pending_runs = [self.join(pending_run) for pending_run in asked]
        try:
            yield pending_runs
        finally:
            for pending_run in pending_runs:
                self.leave(pending_run)

    async def run(self, asked: Sequence[PendingRun]) -> list[str]:
        """Queue programs and wait for all of them. → their results as JSON, in order.

        Raises:
            QueueFull: nothing was queued.
        """
        with self.holding(asked) as pending_runs:
            if pending := [
                pending_run.result for pending_run in pending_runs if not pending_run.result.done()
            ]:
                # Others may wait for the same results, so this must not cancel them.
                await asyncio.wait(pending)
            return [pending_run.result.result() for pending_run in pending_runs]

    def cancel(self, run_id: str) -> None:
        """Take a program back whoever waits for it; those who do are told that it was refused.

        Not a cell that somebody waits for: it may run already, and then its result counts.
        """
        pending_run = self.waiting.get(run_id)
        if pending_run is not None and pending_run.worker is not None:
            return
        reason = RunResult(id=run_id, outcome="refused", stderr="cancelled").model_dump_json()
        self._resolve(run_id, reason)
        self.dropped.append(run_id)
        self.wake.set()

    async def forget(self, run_id: str, result: str) -> None:
        """Forget a result that is no use to whoever asks again."""
        await self.client.eval(*queue.forget_args(run_id, result))

    def join(self, asked: PendingRun) -> PendingRun:
        """Queue one program that was admitted, until `leave`. → the one to wait for, an earlier one of its id if
        there is one."""
        pending_run = self.waiting.get(asked.id)
        if pending_run is None:
            pending_run = self.waiting[asked.id] = asked
            self.waiting_bytes += len(asked.body)
            self.unsent.append(pending_run)
            self.wake.set()
        pending_run.waiters += 1
        return pending_run

    def drop(self, run_id: str) -> None:
        """Take a program back unless somebody waits for it here, or it is a cell that runs."""
        self.dropped.append(run_id)
        self.wake.set()

    async def results(self, ids: Sequence[str]) -> list[str | None]:
        """Stored results as JSON, None for those that are not there any more.

        Raises:
            RedisError: Redis does not answer.
        """
        states = await self.client.mget(map(queue.state_key, ids))
        return [state if queue.is_result(state) else None for state in states]

    def leave(self, pending_run: PendingRun, *, heard: bool = True) -> None:
        """Wait no longer for a run of `join`; a program nobody waits for is taken back.

        Args:
            heard: whoever asked has its result, if there is one, which need not be kept for long then.
        """
        pending_run.waiters -= 1
        if pending_run.waiters:
            return
        if self.waiting.pop(pending_run.id, None) is not None:
            self.waiting_bytes -= len(pending_run.body)
        if pending_run.result.done():
            if heard:
                self.delivered.append(pending_run.id)
        else:
            pending_run.result.cancel()
            self.dropped.append(pending_run.id)
            self.wake.set()

    def _resolve(self, run_id: str, text: str) -> None:
        pending_run = self.waiting.get(run_id)
        if pending_run is not None and not pending_run.result.done():
            pending_run.result.set_result(text)

    async def _forever(self, loop: Callable[[], Awaitable[None]]) -> None:
        delay = 0.05
        while True:
            began = time.monotonic()
            try:
                await loop()
            except RedisError as error:
                log.warning("redis: %s", error)
                delay = 0.05 if time.monotonic() - began > 10 else min(delay * 2, LONGEST_RETRY_S)
                await asyncio.sleep(delay)
                self.wake.set()
            except Exception:
                # A fault of ours. A process that no longer sends or follows answers nobody; a new one does.
                log.exception("the HTTP process ends")
                os._exit(1)

    async def _send(self) -> None:
        while True:
            await self.wake.wait()
            self.wake.clear()
            while self.unsent or self.dropped or len(self.delivered) >= DELIVERED_TOGETHER:
                await self._send_some()

    def _next_unsent(self) -> list[PendingRun]:
        """The pending_runs to send next: as many as one command may hold."""
        size = 0
        for count, pending_run in enumerate(self.unsent[:PIPELINE]):
            size += len(pending_run.body)
            if count and size > COMMAND_BYTES:
                return self.unsent[:count]
        return self.unsent[:PIPELINE]

    async def _send_some(self) -> None:
        taken = self._next_unsent()
        pending_runs = [pending_run for pending_run in taken if not pending_run.result.done()]
        programs = [pending_run for pending_run in pending_runs if pending_run.worker is None]
        cells = [
            (pending_run, pending_run.worker)
            for pending_run in pending_runs
            if pending_run.worker is not None
        ]
        dropped = self.dropped[:PIPELINE]
        commands = []
        if programs:
            commands.append(
                queue.enqueue_args([(pending_run.id, pending_run.body) for pending_run in programs])
            )
        commands += [
            queue.enqueue_cell_args(pending_run.id, pending_run.body, worker) for pending_run, worker in cells
        ]
        enqueued = len(commands)
        for run_id in dropped:
            again = self.waiting.get(run_id)
            if again is None or again.result.done():
                commands.append(queue.cancel_args(run_id))
        if len(self.delivered) >= DELIVERED_TOGETHER:
            commands.append(self._tell_delivered())
        answers = await self.commands.ask([("EVAL", *command) for command in commands])
        del self.unsent[: len(taken)]
        del self.dropped[: len(dropped)]
        sent = programs + [pending_run for pending_run, _ in cells]
        for pending_run, state in zip(sent, chain.from_iterable(answers[:enqueued]), strict=True):
            pending_run.sent_at = time.monotonic()
            if queue.is_result(state):
                self._resolve(pending_run.id, state)
            if pending_run.result.cancelled():
                # It was given up while it was on its way.
                self.dropped.append(pending_run.id)

    def _tell_delivered(self) -> queue.Eval:
        """What has Redis forget delivered results sooner. Where it does not arrive, they stay till they expire."""
        told, self.delivered = self.delivered, []
        return queue.delivered_args([run_id for run_id in told if run_id not in self.waiting])

    async def _follow(self) -> None:
        await self.notices.begin()
        await self._look(list(self.waiting.values()))
        while True:
            await self._take(queue.Notice.all_of(await self.notices.next()))

    async def _take(self, notices: Sequence[queue.Notice]) -> None:
        """Hand out what is told to be finished."""
        longer = []
        for notice in notices:
            if notice.result:
                self._resolve(notice.id, notice.result)
            elif notice.id in self.waiting:
                longer.append(notice.id)
            self.on_done(notice.queue_s, notice.wall_s)
        self.finished += len(notices)
        self.recent.extend((notice.queue_s, notice.wall_s) for notice in notices)
        await self._fetch(longer)

    async def _fetch(self, ids: Sequence[str]) -> None:
        if not ids:
            return
        for run_id, text in zip(ids, await self.results(ids), strict=True):
            if text is not None:
                self._resolve(run_id, text)

    async def _sweep(self) -> None:
        while True:
            before = self.finished
            await asyncio.sleep(SWEEP_S)
            self.wake.set()
            if self.delivered:
                await self.client.eval(*self._tell_delivered())
            await self.notices.check()
            self.rate = 0.5 * self.rate + 0.5 * (self.finished - before) / SWEEP_S
            now = time.monotonic()
            for pending_run in [t for t in self.waiting.values() if t.deadline < now and not t.result.done()]:
                self._give_up(pending_run)
            await self._look([t for t in self.waiting.values() if t.sent_at and now - t.sent_at > SWEEP_S])

    async def _look_around(self) -> None:
        """See how long the queue is, and give the programs of workers that died to those that live."""
        watch = LivenessMonitor()
        for stream in (queue.TASKS, queue.RETURNED):
            await self._make_group(stream)
        while True:
            for name in watch.look(await self._beats(), time.monotonic()):
                log.warning("worker %s is dead", name)
                await self.client.eval(*queue.remove_worker_args(name))
            self.depth = sum([await self.client.xlen(stream) for stream in (queue.TASKS, queue.RETURNED)])
            await asyncio.sleep(CHECK_EVERY_S)

    async def _make_group(self, stream: str) -> None:
        try:
            await self.client.xgroup_create(stream, queue.GROUP, id="0", mkstream=True)
        except ResponseError as error:
            if "BUSYGROUP" not in str(error):
                raise

    async def _beats(self) -> dict[str, int]:
        """Heartbeats by worker; -1 of one that Redis has given programs and never heard of."""
        beats = {}
        for stream in (queue.TASKS, queue.RETURNED):
            found = await self.client.xinfo_consumers(stream, queue.GROUP)
            beats.update({consumer["name"]: -1 for consumer in found})
        states = await self.client.hgetall(queue.WORKERS)
        return beats | {name: int(json.loads(state)["beat"]) for name, state in states.items()}

    async def _look(self, pending_runs: Sequence[PendingRun]) -> None:
        """Fetch results whose notice was missed, and queue again what Redis has forgotten."""
        sent = [t for t in pending_runs if t.sent_at is not None and not t.result.done()]
        for start in range(0, len(sent), 1000):
            chunk = sent[start : start + 1000]
            states = await self.client.mget([queue.state_key(pending_run.id) for pending_run in chunk])
            for pending_run, state in zip(chunk, states, strict=True):
                if queue.is_result(state):
                    self._resolve(pending_run.id, state)
                elif (state is None or state == queue.CANCELLED) and not pending_run.result.done():
                    pending_run.sent_at = None
                    self.unsent.append(pending_run)
                    self.wake.set()

    def _give_up(self, pending_run: PendingRun) -> None:
        reason = f"not finished within {MAX_WAIT_S:.0f} s"
        self._resolve(
            pending_run.id, RunResult(id=pending_run.id, outcome="lost", stderr=reason).model_dump_json()
        )
        self.dropped.append(pending_run.id)
        self.wake.set()
