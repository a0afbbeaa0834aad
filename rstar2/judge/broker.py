"""The HTTP process's side of the queue: puts programs in, waits for their results, takes them back.

Everything that is asked within one turn of the event loop goes to Redis in one pipeline. One task follows
the stream of finished ids; a sweep every few seconds looks after what that stream may have missed, and
queues again what a Redis that lost its data has forgotten.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import redis.asyncio
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from rstar2.judge import queue
from rstar2.judge.schema import RunRequest, RunResult

MAX_WAIT_S = 3600.0
"""A program that is not done this long after its own time limit is answered `lost`."""
PIPELINE = 256
SWEEP_S = 3.0
log = logging.getLogger(__name__)


class QueueFull(Exception):
    """The queue holds as much as it may.

    Args:
        retry_after_s: when to ask again.
    """

    def __init__(self, retry_after_s: float) -> None:
        super().__init__(f"the queue is full, try again in {retry_after_s:.0f} s")
        self.retry_after_s = retry_after_s


class Ticket:
    """One program somebody waits for."""

    def __init__(self, run_id: str, request: RunRequest) -> None:
        self.id = run_id
        self.request = request
        self.result: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """The result as JSON."""
        self.waiters = 0
        self.entry: str | None = None
        self.sent_at: float | None = None
        """Monotonic seconds; None while it has still to be sent."""
        self.deadline = time.monotonic() + request.timeout_s + MAX_WAIT_S


class Broker:
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
            retry=Retry(NoBackoff(), 0),
        )
        self.max_queued = max_queued
        self.depth = 0
        """Programs queued or running, as Redis last said."""
        self.rate = 0.0
        """Programs finished a second, recently, of those asked for here."""
        self.waiting: dict[str, Ticket] = {}
        self.unsent: list[Ticket] = []
        self.dropped: list[Ticket] = []
        self.wake = asyncio.Event()
        self.finished = 0
        self.tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        loops = (self._send, self._follow, self._sweep)
        self.tasks = [asyncio.create_task(self._forever(loop)) for loop in loops]

    async def close(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        await self.client.aclose()

    async def run(self, items: Sequence[tuple[str, RunRequest]]) -> list[str]:
        """Queue programs under their ids and wait for all of them. → their results as JSON, in order.

        An id that is known already is not run again. Cancelling the wait takes programs back that nobody
        else waits for.

        Raises:
            QueueFull: nothing was queued.
        """
        if max(self.depth, len(self.waiting)) + len(items) > self.max_queued:
            raise QueueFull(min(60.0, max(1.0, self.depth / max(self.rate, 1.0))))
        tickets = [self._ticket(run_id, request) for run_id, request in items]
        self.wake.set()
        try:
            return list(await asyncio.gather(*(asyncio.shield(ticket.result) for ticket in tickets)))
        finally:
            for ticket in tickets:
                self._leave(ticket)

    def _ticket(self, run_id: str, request: RunRequest) -> Ticket:
        ticket = self.waiting.get(run_id)
        if ticket is None:
            ticket = self.waiting[run_id] = Ticket(run_id, request)
            self.unsent.append(ticket)
        ticket.waiters += 1
        return ticket

    def _leave(self, ticket: Ticket) -> None:
        ticket.waiters -= 1
        if ticket.waiters:
            return
        self.waiting.pop(ticket.id, None)
        if not ticket.result.done():
            ticket.result.cancel()
            self.dropped.append(ticket)
            self.wake.set()

    def _resolve(self, run_id: str, text: str) -> None:
        ticket = self.waiting.get(run_id)
        if ticket is not None and not ticket.result.done():
            ticket.result.set_result(text)
            self.finished += 1

    async def _forever(self, loop: Callable[[], Awaitable[None]]) -> None:
        delay = 0.05
        while True:
            began = time.monotonic()
            try:
                await loop()
            except RedisError as error:
                log.warning("redis: %s", error)
                delay = 0.05 if time.monotonic() - began > 5 else min(delay * 2, 1.0)
                await asyncio.sleep(delay)

    async def _send(self) -> None:
        while True:
            await self.wake.wait()
            self.wake.clear()
            while self.unsent or self.dropped:
                await self._send_some()

    async def _send_some(self) -> None:
        tickets = [ticket for ticket in self.unsent[:PIPELINE] if not ticket.result.cancelled()]
        skipped = len(self.unsent[:PIPELINE])
        dropped = self.dropped[:PIPELINE]
        pipe = self.client.pipeline(transaction=False)
        for ticket in tickets:
            pipe.eval(*queue.enqueue_args(ticket.id, ticket.request))
        for ticket in dropped:
            if ticket.entry is not None:
                pipe.eval(*queue.cancel_args(ticket.id, ticket.entry))
        pipe.xlen(queue.TASKS)
        pipe.xlen(queue.RETURNED)
        answers = await pipe.execute()
        del self.unsent[:skipped]
        del self.dropped[: len(dropped)]
        self.depth = answers[-1] + answers[-2]
        for ticket, (new, text) in zip(tickets, answers, strict=False):
            ticket.sent_at = time.monotonic()
            if new:
                ticket.entry = text
                if ticket.result.cancelled():
                    self.dropped.append(ticket)
            elif text:
                self._resolve(ticket.id, text)

    async def _follow(self) -> None:
        newest = await self.client.xrevrange(queue.DONE, count=1)
        last = newest[0][0] if newest else "0-0"
        await self._look(list(self.waiting.values()))
        while True:
            found = await self.client.xread({queue.DONE: last}, count=1000, block=1000)
            for _, entries in found or ():
                last = entries[-1][0]
                await self._fetch([fields["id"] for _, fields in entries if fields["id"] in self.waiting])

    async def _fetch(self, ids: Sequence[str]) -> None:
        if not ids:
            return
        for run_id, text in zip(ids, await self.client.mget([queue.run_key(i) for i in ids]), strict=True):
            if text and text != queue.CANCELLED:
                self._resolve(run_id, text)

    async def _sweep(self) -> None:
        while True:
            before = self.finished
            await asyncio.sleep(SWEEP_S)
            self.rate = 0.5 * self.rate + 0.5 * (self.finished - before) / SWEEP_S
            now = time.monotonic()
            for ticket in [t for t in self.waiting.values() if t.deadline < now]:
                self._give_up(ticket)
            await self._look([t for t in self.waiting.values() if t.sent_at and now - t.sent_at > SWEEP_S])

    async def _look(self, tickets: Sequence[Ticket]) -> None:
        """Fetch results whose notice was missed, and queue again what Redis has forgotten."""
        sent = [ticket for ticket in tickets if ticket.sent_at is not None]
        for start in range(0, len(sent), 1000):
            chunk = sent[start : start + 1000]
            states = await self.client.mget([queue.run_key(ticket.id) for ticket in chunk])
            for ticket, state in zip(chunk, states, strict=True):
                if state is None or state == queue.CANCELLED:
                    if not ticket.result.done():
                        ticket.sent_at = None
                        self.unsent.append(ticket)
                        self.wake.set()
                elif state:
                    self._resolve(ticket.id, state)

    def _give_up(self, ticket: Ticket) -> None:
        reason = f"not finished within {MAX_WAIT_S:.0f} s"
        self._resolve(ticket.id, RunResult(id=ticket.id, outcome="lost", stderr=reason).model_dump_json())
        self.dropped.append(ticket)
        self.wake.set()

    async def workers(self) -> list[dict[str, Any]]:
        """The last heartbeat of every worker of the queue, with its `name` and its `age_s`."""
        found = await self.client.hgetall(queue.WORKERS)
        now = time.time()
        states = [{"name": name, **json.loads(text)} for name, text in sorted(found.items())]
        return [{**state, "age_s": max(0.0, now - state["at"])} for state in states]

    async def outcomes(self) -> dict[str, int]:
        """How many programs ended in each outcome."""
        found = await self.client.hgetall(queue.OUTCOMES)
        return {name: int(count) for name, count in sorted(found.items())}

    async def queued(self) -> int:
        """Programs queued or running."""
        lengths = await asyncio.gather(self.client.xlen(queue.TASKS), self.client.xlen(queue.RETURNED))
        return int(sum(lengths))
