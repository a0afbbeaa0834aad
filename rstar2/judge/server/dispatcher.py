"""The part of the HTTP process that works with the queue: it enqueues programs, receives results, and cancels programs.

All commands that are issued in one iteration of the event loop are sent to Redis in one exchange. One asyncio task
receives the notices of finished programs. Every few seconds, a sweep fetches results whose notice was missed. The sweep
also enqueues programs again if Redis has lost its data.
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
"""If Redis has a memory limit (maxmemory), the queue may take this share of it."""
LONGEST_RETRY_AFTER_S = 10.0
"""Maximum number of seconds in the header `Retry-After`."""
MAX_BATCH = 256
"""Maximum number of programs that one exchange with Redis enqueues, and maximum number that it cancels."""
COMMAND_BYTES = 32 << 20
"""Maximum number of bytes in a command to Redis that contains more than one program. Redis accepts at most 1 GiB."""
SWEEP_S = 3.0
DELIVERED_BATCH = 64
"""The dispatcher reports to Redis which results were delivered to their clients. It sends a report at each sweep, and
whenever this many delivered results are not yet reported."""
DROP_SHARE = 0.5
"""Results that were delivered to their clients are deleted early if the queue takes more than this share of
`Dispatcher.allowed_bytes`."""
DROP_AFTER_S = 1.0
"""A delivered result is never deleted earlier than this many seconds after its delivery, because a client whose
connection broke may request it again."""
REFUSED_RETRY_S = 1.0
"""Seconds in the header `Retry-After` if Redis refuses to store programs."""
FIRST_RETRY_S = 0.05
LONGEST_RETRY_S = 0.25
STABLE_S = 10.0
"""If one of the dispatcher's loops has run for this many seconds without an error, the pause after its next error is
`FIRST_RETRY_S` again."""
RECENT = 2000
"""Number of most recently finished programs from which `/status` computes times."""
STATES_PER_COMMAND = 1000
RESULTS_PER_COMMAND = 16
"""One exchange with Redis fetches at most this many long results. A long result can take megabytes, and after a pause
thousands of results may have to be fetched."""
_PROGRAMS = ""
"""One command enqueues all programs that are not cells. The key of this command contains this text instead of a
program's id."""
log = logging.getLogger(__name__)


class NotQueued(Exception):
    """The judge cannot queue a program at the moment, and has not stored the program.

    Args:
        reason: why the program was not queued.
        retry_after_s: seconds after which the client should try again.
    """

    def __init__(self, reason: str, retry_after_s: float) -> None:
        super().__init__(f"{reason}; try again in {retry_after_s:.0f} s")
        self.retry_after_s = retry_after_s


class QueueFull(NotQueued):
    """The queue has reached a limit of `ServerLimits`."""


class QueueRefuses(NotQueued):
    """Redis refuses to store programs at the moment, for example because its disk or memory is full."""

    def __init__(self, error: ResponseError) -> None:
        super().__init__(f"the queue refuses to store programs: {error}", REFUSED_RETRY_S)


class IdReused(Exception):
    """An earlier request with the same id has different contents."""

    def __init__(self) -> None:
        super().__init__(
            "Idempotency-Key: an earlier request with other contents has this key or id; "
            "use a new one for each request"
        )


class PendingRun:
    """One program for whose result a client waits."""

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
        """The message to the worker that describes the program, as JSON."""
        self.fingerprint = queue.fingerprint(body if fingerprint_source is None else fingerprint_source)
        """The fingerprint of the client's request. All requests with the same id must have the same fingerprint."""
        self.size = sys.getsizeof(body)
        """Number of bytes that `body` takes in memory."""
        self.worker = worker
        """The only worker that can run the program, or None if any worker can run it."""
        self.result: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """The program's result as JSON. The future raises IdReused or QueueRefuses if the program was not queued."""
        self.waiters = 0
        """Number of calls of `submit` that returned this run, minus the number of calls of `release` for this run."""
        self.sent_at: float | None = None
        """Monotonic time at which Redis confirmed that it stored the program, or None if Redis has not confirmed this
        yet."""
        self.may_be_stored = False
        """Whether the program was sent to Redis but the reply of Redis was lost."""
        self.early_notice: queue.Notice | None = None
        """A notice with the program's id that arrived before Redis confirmed that it stored the program."""
        self.deadline = time.monotonic() + timeout_s + MAX_WAIT_S

    @classmethod
    def from_request(cls, run_id: str, request: RunRequest) -> Self:
        return cls(run_id, request.model_dump_json(), request.timeout_s, fingerprint_source=identity(request))


def _enqueued_by(run: PendingRun) -> tuple[str, str]:
    """Returns the key of the command that enqueues this program (see `_batch_commands`)."""
    return "enqueue", _PROGRAMS if run.worker is None else run.id


def _is_permanent(error: ResponseError) -> bool:
    """Returns True if the program's key in Redis holds a value of another type. A retry is then useless."""
    return str(error).startswith("WRONGTYPE")


class Dispatcher:
    """Manages all programs of the HTTP process, from the request to the result.

    Call all methods in the same event loop.
    """

    def __init__(self, redis_url: str, max_queued: int, max_queued_bytes: int) -> None:
        self.client = async_client(redis_url)
        self.connection = RedisConnection(redis_url)
        """Connection to Redis that only `_send_batch` uses."""
        self.subscription = Subscription(redis_url, queue.DONE)
        self.max_queued = max_queued
        """The queue is full if it contains this many programs."""
        self.max_queued_bytes = max_queued_bytes
        self.allowed_bytes = max_queued_bytes
        """The queue is full if it takes more than this many bytes. This limit is lower than `max_queued_bytes` if the
        memory limit of Redis requires it."""
        self.depth = 0
        """Number of programs in the queue, including running programs, at the last measurement."""
        self.stored_bytes = 0
        """Bytes of memory that Redis used, including all stored results, at the last measurement."""
        self.submitted_bytes = 0
        """Total number of bytes of all programs that were ever submitted to this dispatcher."""
        self.sent_bytes = 0
        """Total number of bytes of all programs that were ever sent to Redis."""
        self.measured_bytes = 0
        """The value that `sent_bytes` had when `stored_bytes` was measured."""
        self.rate = 0.0
        """Recent number of programs per second that finished in the whole queue."""
        self.finished = 0
        """Number of received notices of finished programs. Notices that were lost with a broken connection are not
        counted."""
        self.recent: deque[tuple[float, float]] = deque(maxlen=RECENT)
        """The values of `queue_s` and `wall_s` of the most recently finished programs of the whole queue."""
        self.on_finished: Callable[[float, float], None] = lambda queue_s, wall_s: None
        """A function that is called with `queue_s` and `wall_s` of each finished program."""
        self.waiting: dict[str, PendingRun] = {}
        """All programs that were submitted and not yet released, keyed by id."""
        self.waiting_bytes = 0
        """Total number of bytes of the programs in `waiting`."""
        self.unsent: list[PendingRun] = []
        self.cancelled: list[str] = []
        """Ids of programs whose cancellation must still be sent to Redis."""
        self.delivered: list[str] = []
        """Ids of results whose delivery to the client was not yet reported to Redis."""
        self.stored_delivered: deque[tuple[float, str]] = deque()
        """Delivered results that Redis still stores, from the oldest to the newest. Each entry is the monotonic time at
        which the delivery was reported to Redis, and the result's id."""
        self.has_work = asyncio.Event()
        """This event is set while there is something to send to Redis."""
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
        """Raises QueueFull if the queue is full, unless `count`, the number of new programs, is 0.

        A request with many programs may exceed the limit if the queue was not full before the request. If every request
        had to fit into the queue, small requests would always fill the queue before a large request fits.
        """
        used = self._used_bytes()
        if max(self.depth, len(self.waiting)) >= self.max_queued:
            reason = f"the queue is full: it may hold {self.max_queued} programs"
        elif used > self.allowed_bytes:
            allowed = self.allowed_bytes >> 20
            reason = f"the queue is full: programs and results take {used >> 20} MiB, {allowed} are allowed"
        else:
            return
        if count:
            drain_s = self.depth / self.rate if self.rate else 0.0
            # Clients come back well before the queue is empty, so that the workers are never idle.
            raise QueueFull(reason, min(LONGEST_RETRY_AFTER_S, max(1.0, drain_s / 4)))

    def _used_bytes(self) -> int:
        """Returns how many bytes the queue takes.

        This is the memory of Redis at the last measurement, plus the bytes of all programs that the measurement did not
        include.

        The returned number is at least the number of bytes of the programs in `waiting`.
        """
        return max(self.waiting_bytes, self.stored_bytes + self.submitted_bytes - self.measured_bytes)

    async def run(self, programs: Sequence[PendingRun]) -> list[str]:
        """Queue programs and wait until all have ended.

        Returns the programs' results as JSON, in the order of the programs.

        Raises:
            QueueFull: the queue is full, and no program was queued.
            QueueRefuses: Redis does not store programs, and none of these programs will run.
            IdReused: an earlier request with other contents has the same id as one of these programs. If this error is
                raised, all `programs` of this call are cancelled.
        """
        self.check_capacity(len(programs))
        runs = [self.submit(run) for run in programs]
        try:
            if unfinished := [run.result for run in runs if not run.result.done()]:
                # `wait` does not cancel the futures, because other clients may wait for the same results.
                await asyncio.wait(unfinished, return_when=asyncio.FIRST_EXCEPTION)
            failed = [run for run in runs if run.result.done() and run.result.exception() is not None]
            return [run.result.result() for run in failed or runs]
        finally:
            for run in runs:
                self.release(run)

    def submit(self, program: PendingRun) -> PendingRun:
        """Queue one program. Call `check_capacity` before `submit`, and call `release` to stop waiting for the program.

        Returns the run to wait for. If a run with the same id exists already, that run is returned, because a program
        runs only once.
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
        """Stop waiting for a run. If no other caller waits for the run, its program is cancelled.

        Args:
            run: the run that `submit` returned.
            delivered: whether the result was delivered to the client. A delivered result expires sooner than a result
                that was not delivered.
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
        """Cancel a program in Redis, unless a client of this process waits for the program.

        A cell that is already running is not cancelled.
        """
        self.cancelled.append(run_id)
        self.has_work.set()

    def cancel(self, run_id: str) -> None:
        """Cancel a program even if clients wait for it. The waiting clients get the outcome `refused`.

        If a client waits for a cell, the cell is not cancelled, because it may already be running and changing the
        session.
        """
        run = self.waiting.get(run_id)
        if run is not None and run.worker is not None:
            return
        self._give_up(run_id, "refused", "cancelled")

    async def forget(self, run_id: str, result: str) -> None:
        """Delete a stored result, so that a repeated request with the same id runs the program again."""
        await self.client.execute_command(*queue.forget(run_id, result))

    async def stored_results(self, ids: Sequence[str]) -> dict[str, str]:
        """Returns a dict from id to the stored result as JSON. Ids without a stored result are left out.

        Raises RedisError if Redis does not answer.
        """
        states = await self.client.mget([queue.state_key(run_id) for run_id in ids])
        bare = [state and state[queue.FINGERPRINT_CHARS :] for state in states]
        return {run_id: state for run_id, state in zip(ids, bare, strict=True) if queue.is_result(state)}

    def _resolve(self, run_id: str, result: str) -> None:
        run = self.waiting.get(run_id)
        if run is not None and not run.result.done():
            run.result.set_result(result)

    async def _keep_running(self, loop: Callable[[], Awaitable[None]]) -> None:
        """Run one of the dispatcher's loops until it is cancelled. Restart the loop after each error of Redis.

        If the loop ends for a reason other than an error of Redis, end this process, because without one of its loops
        the process could answer no request.
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
        """Send unsent programs and cancellations to Redis in one exchange, and handle the replies."""
        sizes = list(accumulate(run.size for run in self.unsent[:MAX_BATCH]))
        batch = self.unsent[: max(1, bisect(sizes, COMMAND_BYTES))]
        cancelled = self.cancelled[:MAX_BATCH]
        runs = [run for run in batch if not run.result.done()]
        try:
            replies = await self.connection.execute(self._batch_commands(runs, cancelled))
        except RedisError:
            for run in runs:
                run.may_be_stored = True
            raise
        errors = {key: reply for key, reply in replies.items() if isinstance(reply, ResponseError)}
        unknown = self._answer_refused(runs, errors)
        self.unsent[: len(batch)] = unknown
        self.sent_bytes += sum(run.size for run in batch) - sum(run.size for run in unknown)
        self.cancelled[: len(cancelled)] = [
            run_id
            for (kind, run_id), error in errors.items()
            if kind == "cancel" and not _is_permanent(error)
        ]
        earlier_states: dict[str, str] = {}
        for key, reply in replies.items():
            if key[0] == "enqueue" and key not in errors:
                earlier_states |= queue.pairs(reply)
        stored = [run for run in runs if _enqueued_by(run) not in errors]
        for run in stored:
            self._handle_stored(run, earlier_states.get(run.id), cancelled)
        early_notices = [run.early_notice for run in stored if run.early_notice is not None]
        await self._hand_out(early_notices)
        if errors:
            # `_keep_running` pauses, and then sends the rest.
            raise next(iter(errors.values()))

    def _batch_commands(
        self, runs: Sequence[PendingRun], cancelled: Sequence[str]
    ) -> dict[tuple[str, str], Command]:
        """Returns the commands of one exchange with Redis, keyed by the command's kind and an id."""
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
            newer_run = self.waiting.get(run_id)
            if newer_run is None or newer_run.result.done():
                commands["cancel", run_id] = queue.cancel(run_id)
        if len(self.delivered) >= DELIVERED_BATCH:
            commands["expire", "delivered"] = self._expire_delivered()
        return commands

    def _handle_stored(self, run: PendingRun, earlier_state: str | None, cancelled: Sequence[str]) -> None:
        """Handle the reply of Redis for one run. Redis has either stored the run now, or already knew the run's id.

        Args:
            run: the run that was sent.
            earlier_state: the state that Redis already had for this id, or None if Redis did not know the id.
            cancelled: ids of the programs that the same exchange should cancel.
        """
        run.sent_at = time.monotonic()
        if queue.is_result(earlier_state):
            self._resolve(run.id, earlier_state)
        elif earlier_state == queue.REUSED and not run.result.done():
            run.result.set_exception(IdReused())
            if run.id in cancelled:
                # The cancellation was for the earlier program, and was skipped because of this run.
                self.cancelled.append(run.id)
        if run.result.cancelled():
            # The run was released while it was being sent.
            self.cancelled.append(run.id)

    def _answer_refused(
        self, runs: Sequence[PendingRun], errors: Mapping[tuple[str, str], ResponseError]
    ) -> list[PendingRun]:
        """Make all programs that Redis refused to store fail with QueueRefuses.

        Runs that an earlier try may have stored do not fail. The method returns these runs, and the caller must send
        them again.
        """
        unknown = []
        for run in runs:
            error = errors.get(_enqueued_by(run))
            if error is not None and run.may_be_stored and not _is_permanent(error):
                unknown.append(run)
            elif error is not None and not run.result.done():
                run.result.set_exception(QueueRefuses(error))
        return unknown

    def _expire_delivered(self) -> Command:
        """Returns the command that makes Redis delete delivered results sooner than other results.

        If the command is lost, Redis deletes the delivered results at their usual time.
        """
        delivered, self.delivered = self.delivered, []
        expiring = [run_id for run_id in delivered if run_id not in self.waiting]
        now = time.monotonic()
        self.stored_delivered.extend((now, run_id) for run_id in expiring)
        return queue.expire_delivered(expiring)

    async def _drop_delivered(self) -> None:
        """If the queue needs memory, delete results that were delivered more than `DROP_AFTER_S` seconds ago."""
        stored, now = self.stored_delivered, time.monotonic()
        while stored and now - stored[0][0] > queue.DELIVERED_TTL_S:
            stored.popleft()
        if self._used_bytes() <= DROP_SHARE * self.allowed_bytes:
            return
        dropped: list[str] = []
        while stored and now - stored[0][0] > DROP_AFTER_S and len(dropped) < STATES_PER_COMMAND:
            dropped.append(stored.popleft()[1])
        if ids := [run_id for run_id in dropped if run_id not in self.waiting]:
            await self.client.execute_command(*queue.drop_results(ids))

    async def _receive_loop(self) -> None:
        await self.subscription.subscribe()
        await self._check_states(list(self.waiting.values()))
        while True:
            await self._handle_notices(await self.subscription.next())

    async def _handle_notices(self, message: str) -> None:
        """Record the times of finished programs, and pass the programs' results to the callers that wait for them."""
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
                # The notice may be of an earlier program with this id. Only the reply to `enqueue` can tell.
                run.early_notice = notice
            elif notice.result:
                self._resolve(notice.id, notice.result)
            else:
                not_inline.append(notice.id)
        await self._fetch_results(not_inline)

    async def _fetch_results(self, ids: Sequence[str]) -> None:
        """Fetch results from Redis, and pass them to the callers that wait for them."""
        for start in range(0, len(ids), RESULTS_PER_COMMAND):
            results = await self.stored_results(ids[start : start + RESULTS_PER_COMMAND])
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
        """Fetch results whose notice was missed. If Redis has lost some programs, enqueue these programs again."""
        sent = [run for run in runs if run.sent_at is not None and not run.result.done()]
        long_results: list[str] = []
        for start in range(0, len(sent), STATES_PER_COMMAND):
            chunk = sent[start : start + STATES_PER_COMMAND]
            states = await self.client.execute_command(*queue.short_states([run.id for run in chunk]))
            for run, state in zip(chunk, states, strict=True):
                if len(state) > queue.DONE_INLINE_CHARS:
                    long_results.append(run.id)
                elif queue.is_result(state):
                    self._resolve(run.id, state)
                elif state in ("", queue.CANCELLED) and not run.result.done():
                    self._send_soon(run)
        await self._fetch_results(long_results)

    def _give_up(self, run_id: str, outcome: Outcome, reason: str) -> None:
        self._resolve(run_id, RunResult(id=run_id, outcome=outcome, stderr=reason).model_dump_json())
        self.cancel_unless_awaited(run_id)

    async def _watch_workers_loop(self) -> None:
        """Every `CHECK_EVERY_S` seconds, measure the queue, and return the programs of dead workers to the queue."""
        await self.client.execute_command(*queue.make_groups((queue.TASKS, queue.RETURNED)))
        while True:
            for name in self.monitor.dead_workers(await self._heartbeats(), time.monotonic()):
                log.warning("worker %s is dead", name)
                await self.client.execute_command(*queue.remove_worker(name))
            await self._measure_queue()
            await self._drop_delivered()
            await asyncio.sleep(CHECK_EVERY_S)

    async def _measure_queue(self) -> None:
        """Set `depth`, `stored_bytes`, `measured_bytes` and `allowed_bytes` to values that Redis reports now."""
        sent = self.sent_bytes
        self.depth = await self.client.xlen(queue.TASKS)
        memory = await self.client.info("memory")
        self.stored_bytes, self.measured_bytes = memory["used_memory"], sent
        allowed = int(REDIS_SHARE * memory["maxmemory"]) or self.max_queued_bytes
        self.allowed_bytes = min(self.max_queued_bytes, allowed)

    async def _heartbeats(self) -> dict[str, int]:
        """Returns a dict from worker name to the `beat` of the worker's last heartbeat, or to -1 if the worker has no
        readable heartbeat.
        """
        beats = {}
        for stream in (queue.TASKS, queue.RETURNED):
            consumers = await self.client.xinfo_consumers(stream, queue.GROUP)
            beats.update({each["name"]: -1 for each in consumers if each["name"] != queue.NOBODY})
        for name, text in (await self.client.hgetall(queue.WORKERS)).items():
            state = read_heartbeat(text)
            beats[name] = -1 if state is None else state["beat"]
        return beats
