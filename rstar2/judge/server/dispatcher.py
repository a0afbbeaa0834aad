"""How the HTTP process uses the queue: it enqueues programs, receives their results, and cancels programs.

Everything that is asked for within one turn of the event loop goes to Redis in one exchange. One task receives the
notices of finished programs; a sweep every few seconds finds results whose notice was missed, and enqueues again
what a Redis that lost its data has forgotten.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from bisect import bisect
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import accumulate
from typing import Self

from redis.exceptions import RedisError, ResponseError

from rstar2.judge.fail_fast import end_process
from rstar2.judge.queue import tasks as queue
from rstar2.judge.queue.liveness import CHECK_EVERY_S, LivenessMonitor, read_heartbeat
from rstar2.judge.queue.redis_connection import Command, RedisConnection, Subscription, async_client
from rstar2.judge.schema import MAX_WAIT_S, Outcome, RunRequest, RunResult, identity
from rstar2.retry import Backoff

REDIS_SHARE = 0.75
"""Of the memory that Redis itself may take, where it has a limit (maxmemory)."""
LONGEST_RETRY_AFTER_S = 10.0
"""`Retry-After` is at most this."""
MAX_BATCH = 256
"""Programs enqueued, and cancelled, in one exchange with Redis."""
COMMAND_BYTES = 32 << 20
"""Programs sent in one command, if it is more than one; Redis takes a GiB at most."""
SWEEP_S = 3.0
DELIVERED_BATCH = 64
"""Delivered results are reported to Redis when there are this many, and at each sweep."""
DROP_SHARE = 0.5
"""Delivered results are dropped when the queue takes more than this share of the bytes that it may take."""
DROP_AFTER_S = 1.0
"""They are kept for this long in any case: a client whose connection broke may ask again."""
REFUSED_RETRY_S = 1.0
"""`Retry-After` when Redis stores nothing."""
FIRST_RETRY_S = 0.05
LONGEST_RETRY_S = 0.25
STABLE_S = 10.0
"""After a loop has run for this long without an error, it is retried quickly again."""
RECENT = 2000
STATES_AT_ONCE = 1000
RESULTS_AT_ONCE = 16
"""Long results fetched in one exchange: each takes megabytes, and after a pause there can be thousands."""
_PROGRAMS = ""
"""In place of an id: the command that enqueues all programs that are no cells."""
log = logging.getLogger(__name__)


class NotQueued(Exception):
    """The judge cannot queue a program now, and has stored nothing of it.

    Args:
        reason: why.
        retry_after_s: when to ask again.
    """

    def __init__(self, reason: str, retry_after_s: float) -> None:
        super().__init__(f"{reason}; try again in {retry_after_s:.0f} s")
        self.retry_after_s = retry_after_s


class QueueFull(NotQueued):
    """The judge holds as much as it may."""


class QueueRefuses(NotQueued):
    """Redis stores nothing at the moment and says why, such as a full disk or full memory."""

    def __init__(self, error: ResponseError) -> None:
        super().__init__(f"the queue refuses to store programs: {error}", REFUSED_RETRY_S)


class IdReused(Exception):
    """Something else was asked for under this id before."""

    def __init__(self) -> None:
        super().__init__(
            "Idempotency-Key: something else was asked for under this key or id; choose a new one for each request"
        )


class PendingRun:
    """One program that some client waits for."""

    def __init__(
        self,
        run_id: str,
        body: str,
        timeout_s: float,
        worker: str | None = None,
        fingerprint_source: str | None = None,
    ) -> None:
        self.id = run_id
        self.body = body
        """What the worker gets, as JSON."""
        self.fingerprint = queue.fingerprint(body if fingerprint_source is None else fingerprint_source)
        """The fingerprint of the client's request. Each request under this id must have the same one."""
        self.size = sys.getsizeof(body)
        """Bytes of `body` in memory."""
        self.worker = worker
        """The only one that can run it; None: any."""
        self.result: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """The result as JSON, or IdReused or QueueRefuses."""
        self.waiters = 0
        self.sent_at: float | None = None
        """Monotonic seconds; None until Redis has answered that it has it."""
        self.may_be_stored = False
        """Whether it was sent to Redis, and no answer came."""
        self.early_notice: queue.Notice | None = None
        """One that came before that answer."""
        self.deadline = time.monotonic() + timeout_s + MAX_WAIT_S

    @classmethod
    def from_request(cls, run_id: str, request: RunRequest) -> Self:
        return cls(run_id, request.model_dump_json(), request.timeout_s, fingerprint_source=identity(request))


def _enqueued_by(run: PendingRun) -> tuple[str, str]:
    """The name of the command that enqueues a program."""
    return "enqueue", _PROGRAMS if run.worker is None else run.id


def _is_permanent(error: ResponseError) -> bool:
    """Whether a command fails however often it is tried: what is under the program's key is no state of a program."""
    return str(error).startswith("WRONGTYPE")


class Dispatcher:
    """The HTTP process's programs, from the request to the result. All methods belong to one event loop."""

    def __init__(self, redis_url: str, max_queued: int, max_queued_bytes: int) -> None:
        self.client = async_client(redis_url)
        self.connection = RedisConnection(redis_url)
        """For `_send_batch` alone."""
        self.subscription = Subscription(redis_url, queue.DONE)
        self.max_queued = max_queued
        """Programs in the queue from which on `QueueFull` is raised."""
        self.max_queued_bytes = self.allowed_bytes = max_queued_bytes
        """Bytes of Redis, or of the programs here, from which on it is raised, and fewer if Redis may not hold that."""
        self.depth = 0
        """Programs queued or running, as Redis last said."""
        self.stored_bytes = 0
        """Memory that Redis takes, with the results it keeps, as it last said."""
        self.submitted_bytes = self.sent_bytes = self.measured_bytes = 0
        """Of all programs so far that were to be sent to Redis, that were sent, and that `stored_bytes` includes."""
        self.rate = 0.0
        """Programs finished a second, recently, in the whole queue."""
        self.finished = 0
        """Notices of finished programs received so far; those a broken connection missed are not counted."""
        self.recent: deque[tuple[float, float]] = deque(maxlen=RECENT)
        """(queue_s, wall_s) of what was finished last in the whole queue."""
        self.on_finished: Callable[[float, float], None] = lambda queue_s, wall_s: None
        self.waiting: dict[str, PendingRun] = {}
        self.waiting_bytes = 0
        self.unsent: list[PendingRun] = []
        self.cancelled: list[str] = []
        """Ids of programs to be cancelled in Redis."""
        self.delivered: list[str] = []
        """Ids of results that their clients have got."""
        self.stored_delivered: deque[tuple[float, str]] = deque()
        """Monotonic seconds and ids of such results, oldest first, until they expire."""
        self.has_work = asyncio.Event()
        """Set when there is something to send to Redis."""
        self.loops: list[asyncio.Task[None]] = []
        self.monitor = LivenessMonitor()

    async def start(self) -> None:
        loops = (self._send_loop, self._receive_loop, self._sweep_loop, self._watch_workers_loop)
        self.loops = [asyncio.create_task(self._keep_running(loop)) for loop in loops]

    async def close(self) -> None:
        for task in self.loops:
            task.cancel()
        await asyncio.gather(*self.loops, return_exceptions=True)
        for connection in (self.connection, self.subscription):
            await connection.close()
        await self.client.aclose()

    def check_capacity(self, count: int) -> None:
        """Raise QueueFull unless this many more programs may be queued: all or none, lest large requests starve."""
        held = self._held_bytes()
        if max(self.depth, len(self.waiting)) >= self.max_queued:
            full = f"the queue is full: it may hold {self.max_queued} programs"
        elif held > self.allowed_bytes:
            allowed = self.allowed_bytes >> 20
            full = f"the queue is full: programs and results take {held >> 20} MiB, {allowed} are allowed"
        else:
            return
        if count:
            drained_s = self.depth / self.rate if self.rate else 0.0
            # Not when it will be empty: the workers must not run dry before the clients come back.
            raise QueueFull(full, min(LONGEST_RETRY_AFTER_S, max(1.0, drained_s / 4)))

    def _held_bytes(self) -> int:
        """Bytes of the queue, with what was sent since they were measured, or of the programs here."""
        return max(self.waiting_bytes, self.stored_bytes + self.submitted_bytes - self.measured_bytes)

    async def run(self, programs: Sequence[PendingRun]) -> list[str]:
        """Queue programs and wait for all. → their results as JSON, in order.

        Raises:
            QueueFull: nothing was queued.
            QueueRefuses: Redis does not store programs; none of these will run.
            IdReused: an id is known for something else; the programs are cancelled.
        """
        self.check_capacity(len(programs))
        runs = [self.submit(run) for run in programs]
        try:
            if unfinished := [run.result for run in runs if not run.result.done()]:
                # Others may wait for the same results, so this must not cancel them.
                await asyncio.wait(unfinished, return_when=asyncio.FIRST_EXCEPTION)
            failed = [run for run in runs if run.result.done() and run.result.exception() is not None]
            return [run.result.result() for run in failed or runs]
        finally:
            for run in runs:
                self.release(run)

    def submit(self, program: PendingRun) -> PendingRun:
        """Queue one program, until `release`. Call `check_capacity` before.

        → the one to wait for: an earlier one of the same id, if there is one, which is not run again.
        """
        run = self.waiting.get(program.id)
        if run is None:
            run = self.waiting[program.id] = program
            self.waiting_bytes += run.size
            self._send_soon(run)
        elif run.fingerprint != program.fingerprint:
            run = program
            run.result.set_exception(IdReused())
        run.waiters += 1
        return run

    def _send_soon(self, run: PendingRun) -> None:
        run.sent_at = None
        self.unsent.append(run)
        self.submitted_bytes += run.size
        self.has_work.set()

    def release(self, run: PendingRun, *, delivered: bool = True) -> None:
        """Wait no longer for a run of `submit`; a program nobody else waits for is cancelled.

        Args:
            delivered: the client has the result, if there is one, which need not be kept for long then.
        """
        run.waiters -= 1
        if run.waiters:
            return
        if self.waiting.get(run.id) is run:
            del self.waiting[run.id]
            self.waiting_bytes -= run.size
        if run.result.done():
            if run.result.exception() is None and delivered:
                self.delivered.append(run.id)
        else:
            run.result.cancel()
            self.cancel_unless_awaited(run.id)

    def cancel_unless_awaited(self, run_id: str) -> None:
        """Cancel a program unless a client waits for it here, or it is a cell that runs."""
        self.cancelled.append(run_id)
        self.has_work.set()

    def cancel(self, run_id: str) -> None:
        """Cancel a program, also where clients wait for it; they get the outcome `refused`.

        Not a cell that somebody waits for: it may run already, and then its result counts.
        """
        run = self.waiting.get(run_id)
        if run is not None and run.worker is not None:
            return
        self._give_up(run_id, "refused", "cancelled")

    async def forget(self, run_id: str, result: str) -> None:
        """Forget a result that is no use to a client that asks again."""
        await self.client.execute_command(*queue.forget(run_id, result))

    async def stored_results(self, ids: Sequence[str]) -> dict[str, str]:
        """Results as JSON by id, of those that are still in Redis; RedisError where it does not answer."""
        states = await self.client.mget([queue.state_key(run_id) for run_id in ids])
        bare = [state and state[queue.FINGERPRINT_CHARS :] for state in states]
        return {run_id: state for run_id, state in zip(ids, bare, strict=True) if queue.is_result(state)}

    def _resolve(self, run_id: str, result: str) -> None:
        run = self.waiting.get(run_id)
        if run is not None and not run.result.done():
            run.result.set_result(result)

    async def _keep_running(self, loop: Callable[[], Awaitable[None]]) -> None:
        """Run one of the loops until it is cancelled, again after each error of Redis.

        Ends the process if it ends in any other way: one that no longer sends or receives would answer nobody.
        """
        task = asyncio.current_task()
        backoff = Backoff(FIRST_RETRY_S, LONGEST_RETRY_S)
        while True:
            began = time.monotonic()
            try:
                await loop()
            except RedisError as error:
                log.warning("redis: %s", error)
                if time.monotonic() - began > STABLE_S:
                    backoff.reset()
                await asyncio.sleep(backoff.next_s())
                self.has_work.set()
            except BaseException as error:
                if task is not None and task.cancelling():
                    raise
                end_process(f"unexpected exception in {loop.__name__}", error)

    async def _send_loop(self) -> None:
        while True:
            await self.has_work.wait()
            self.has_work.clear()
            while self.unsent or self.cancelled or len(self.delivered) >= DELIVERED_BATCH:
                await self._send_batch()

    async def _send_batch(self) -> None:
        """Send to Redis as much as one exchange may hold, and handle the replies."""
        sizes = list(accumulate(run.size for run in self.unsent[:MAX_BATCH]))
        taken = self.unsent[: max(1, bisect(sizes, COMMAND_BYTES))]
        cancelled = self.cancelled[:MAX_BATCH]
        runs = [run for run in taken if not run.result.done()]
        commands: dict[tuple[str, str], Command] = {}
        if programs := {run.id: run.body for run in runs if run.worker is None}:
            fingerprints = {run.id: run.fingerprint for run in runs}
            commands["enqueue", _PROGRAMS] = queue.enqueue(programs, fingerprints)
        for run in runs:
            if run.worker is not None:
                commands["enqueue", run.id] = queue.enqueue_cell(
                    run.id, run.body, run.worker, run.fingerprint
                )
        for run_id in cancelled:
            again = self.waiting.get(run_id)
            if again is None or again.result.done():
                commands["cancel", run_id] = queue.cancel(run_id)
        if len(self.delivered) >= DELIVERED_BATCH:
            commands["expire", "delivered"] = self._expire_delivered()
        try:
            replies = await self.connection.execute(commands)
        except RedisError:
            for run in runs:
                run.may_be_stored = True
            raise
        errors = {key: reply for key, reply in replies.items() if isinstance(reply, ResponseError)}
        unknown = self._answer_refused(runs, errors)
        self.unsent[: len(taken)] = unknown
        self.sent_bytes += sum(run.size for run in taken) - sum(run.size for run in unknown)
        self.cancelled[: len(cancelled)] = [
            run_id
            for (kind, run_id), error in errors.items()
            if kind == "cancel" and not _is_permanent(error)
        ]
        known: dict[str, str] = {}
        for key, reply in replies.items():
            if key[0] == "enqueue" and key not in errors:
                known |= queue.pairs(reply)
        stored = [run for run in runs if _enqueued_by(run) not in errors]
        for run in stored:
            run.sent_at = time.monotonic()
            if queue.is_result(state := known.get(run.id)):
                self._resolve(run.id, state)
            elif state == queue.REUSED and not run.result.done():
                run.result.set_exception(IdReused())
                if run.id in cancelled:
                    # That was another program, which this one has kept from being cancelled.
                    self.cancelled.append(run.id)
            if run.result.cancelled():
                # It was released while it was on its way.
                self.cancelled.append(run.id)
        early = [run.early_notice for run in stored if run.early_notice is not None]
        await self._hand_out(early)
        if errors:
            # What is left, and what is asked for meanwhile, is sent after a pause.
            raise next(iter(errors.values()))

    def _answer_refused(
        self, runs: Sequence[PendingRun], errors: Mapping[tuple[str, str], ResponseError]
    ) -> list[PendingRun]:
        """Answer the programs that Redis has refused to store. → those that it may have stored before."""
        unknown = []
        for run in runs:
            error = errors.get(_enqueued_by(run))
            if error is not None and run.may_be_stored and not _is_permanent(error):
                unknown.append(run)
            elif error is not None and not run.result.done():
                run.result.set_exception(QueueRefuses(error))
        return unknown

    def _expire_delivered(self) -> Command:
        """Has Redis forget delivered results sooner. If it does not arrive, they stay until they expire."""
        delivered, self.delivered = self.delivered, []
        done = [run_id for run_id in delivered if run_id not in self.waiting]
        now = time.monotonic()
        self.stored_delivered.extend((now, run_id) for run_id in done)
        return queue.expire_delivered(done)

    async def _drop_delivered(self) -> None:
        """Drop results that were delivered a while ago, if the queue needs their memory."""
        stored, now = self.stored_delivered, time.monotonic()
        while stored and now - stored[0][0] > queue.DELIVERED_TTL_S:
            stored.popleft()
        if self._held_bytes() <= DROP_SHARE * self.allowed_bytes:
            return
        dropped: list[str] = []
        while stored and now - stored[0][0] > DROP_AFTER_S and len(dropped) < STATES_AT_ONCE:
            dropped.append(stored.popleft()[1])
        if ids := [run_id for run_id in dropped if run_id not in self.waiting]:
            await self.client.execute_command(*queue.drop_results(ids))

    async def _receive_loop(self) -> None:
        await self.subscription.subscribe()
        await self._check_states(list(self.waiting.values()))
        while True:
            await self._handle_notices(await self.subscription.next())

    async def _handle_notices(self, message: str) -> None:
        """Hand out the results of finished programs."""
        notices = queue.Notice.from_message(message)
        for notice in notices:
            self.on_finished(notice.queue_s, notice.wall_s)
        self.finished += len(notices)
        self.recent.extend((notice.queue_s, notice.wall_s) for notice in notices)
        await self._hand_out(notices)

    async def _hand_out(self, notices: Sequence[queue.Notice]) -> None:
        not_inline = []
        for notice in notices:
            run = self.waiting.get(notice.id)
            if run is None:
                continue
            if run.sent_at is None:
                # It may tell of another program, which was cancelled under this id too late. Redis knows.
                run.early_notice = notice
            elif notice.result:
                self._resolve(notice.id, notice.result)
            else:
                not_inline.append(notice.id)
        await self._fetch_results(not_inline)

    async def _fetch_results(self, ids: Sequence[str]) -> None:
        """Hand out results that are in Redis."""
        for start in range(0, len(ids), RESULTS_AT_ONCE):
            results = await self.stored_results(ids[start : start + RESULTS_AT_ONCE])
            for run_id, result in results.items():
                self._resolve(run_id, result)

    async def _sweep_loop(self) -> None:
        while True:
            before = self.finished
            await asyncio.sleep(SWEEP_S)
            self.has_work.set()
            if self.delivered:
                await self.client.execute_command(*self._expire_delivered())
            await self.subscription.check()
            self.rate = 0.5 * self.rate + 0.5 * (self.finished - before) / SWEEP_S
            now = time.monotonic()
            for run in [run for run in self.waiting.values() if run.deadline < now and not run.result.done()]:
                self._give_up(run.id, "lost", f"not finished within {MAX_WAIT_S:.0f} s")
            await self._check_states(
                [run for run in self.waiting.values() if run.sent_at and now - run.sent_at > SWEEP_S]
            )

    async def _check_states(self, runs: Sequence[PendingRun]) -> None:
        """Fetch results whose notice was missed, and enqueue again what Redis has forgotten."""
        sent = [run for run in runs if run.sent_at is not None and not run.result.done()]
        long: list[str] = []
        for start in range(0, len(sent), STATES_AT_ONCE):
            chunk = sent[start : start + STATES_AT_ONCE]
            states = await self.client.execute_command(*queue.short_states([run.id for run in chunk]))
            for run, state in zip(chunk, states, strict=True):
                if len(state) > queue.DONE_INLINE_CHARS:
                    long.append(run.id)
                elif queue.is_result(state):
                    self._resolve(run.id, state)
                elif state in ("", queue.CANCELLED) and not run.result.done():
                    self._send_soon(run)
        await self._fetch_results(long)

    def _give_up(self, run_id: str, outcome: Outcome, reason: str) -> None:
        self._resolve(run_id, RunResult(id=run_id, outcome=outcome, stderr=reason).model_dump_json())
        self.cancel_unless_awaited(run_id)

    async def _watch_workers_loop(self) -> None:
        """Read how much the queue holds, and give the programs of workers that died to those that live."""
        await self.client.execute_command(*queue.make_groups((queue.TASKS, queue.RETURNED)))
        while True:
            for name in self.monitor.dead_workers(await self._heartbeats(), time.monotonic()):
                log.warning("worker %s is dead", name)
                await self.client.execute_command(*queue.remove_worker(name))
            await self._measure_queue()
            await self._drop_delivered()
            await asyncio.sleep(CHECK_EVERY_S)

    async def _measure_queue(self) -> None:
        """Read how many programs the queue holds, and how many bytes it takes."""
        sent = self.sent_bytes
        self.depth = await self.client.xlen(queue.TASKS)
        memory = await self.client.info("memory")
        self.stored_bytes, self.measured_bytes = memory["used_memory"], sent
        allowed = int(REDIS_SHARE * memory["maxmemory"]) or self.max_queued_bytes
        self.allowed_bytes = min(self.max_queued_bytes, allowed)

    async def _heartbeats(self) -> dict[str, int]:
        """The numbers of the last heartbeats by worker; -1 for one that has none, or none that can be read."""
        beats = {}
        for stream in (queue.TASKS, queue.RETURNED):
            consumers = await self.client.xinfo_consumers(stream, queue.GROUP)
            beats.update({each["name"]: -1 for each in consumers if each["name"] != queue.NOBODY})
        for name, text in (await self.client.hgetall(queue.WORKERS)).items():
            state = read_heartbeat(text)
            beats[name] = -1 if state is None else state["beat"]
        return beats
