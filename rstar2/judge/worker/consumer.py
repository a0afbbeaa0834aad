"""The part of a worker that works with the queue: `Consumer` fetches tasks, stores results and sends heartbeats.

While programs wait in the queue, a separate thread prefetches several tasks and stores several results at a time, so
that one exchange with Redis serves many programs. The thread prefetches at most this worker's share of all unfinished
programs, so that no program waits in this worker while another worker is idle. If the queue is short, the main thread
fetches each task itself, because passing a task between threads would take longer than the exchange with Redis.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import redis

from rstar2.errors import UserError
from rstar2.judge.protocol_version import PROTOCOL
from rstar2.judge.queue import requirements
from rstar2.judge.queue import tasks as queue
from rstar2.judge.queue.liveness import HEARTBEAT_S, heartbeat
from rstar2.judge.queue.redis_connection import Command, SyncRedisConnection, execute
from rstar2.judge.queue.tasks import Task
from rstar2.judge.schema import RunResult
from rstar2.judge.worker.local_queue import LocalQueue
from rstar2.retry import Backoff

MAX_TASKS = 10_000
"""No worker has more than this many tasks at once."""
BLOCK_MS = 300
"""While this worker is idle, Redis may wait this many milliseconds for a new task."""
CELLS_BLOCK_MS = 10
"""While cells run in the threads of their sessions, Redis may wait this many milliseconds for a new task. The results
of the cells are sent only after this wait."""
FIRST_RETRY_S = 0.05
LONGEST_RETRY_S = 0.25
REMIND_S = 60.0
"""While the connection to Redis is lost, the worker logs the loss at most once in this many seconds."""
STABLE_S = 10.0
"""If a new connection to Redis is lost within this many seconds, the loss counts as part of the previous outage. For
example, a Redis server whose memory is full accepts one command and refuses the next."""
HUNG_S = 300.0
"""The main thread counts as hanging if it makes no progress for this many seconds plus its program's time limit. Even
on a slow machine, building a jail and loading a zygote's libraries take less time."""
log = logging.getLogger(__name__)


class Consumer:
    """A worker's connection to the queue.

    Args:
        name: the worker's name, unique among all workers of the queue.
        client: a redis-py client that decodes replies and never retries a command.
        local: the queue through which this object and the main thread exchange tasks and results.
        about: fields that describe the worker. Each heartbeat contains these fields.
        abort: a function that ends the program with a given id if this program is running.
    """

    def __init__(
        self,
        name: str,
        client: redis.Redis,
        local: LocalQueue,
        about: dict[str, Any],
        abort: Callable[[str], None],
    ) -> None:
        self.name = name
        self.streams = (queue.cells_stream(name), queue.RETURNED, queue.TASKS)
        """The streams from which tasks are fetched, in this order."""
        self.client = client
        self.connection = SyncRedisConnection(client)
        self.local = local
        self.abort = abort
        self.about = {
            **about,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "protocol": str(PROTOCOL),
        }
        self.exchanging = threading.Lock()
        """A thread holds this lock while it exchanges data with Redis."""
        self.more_returned = False
        """Whether the queue may contain more returned tasks, which are older than any new task."""
        self.done = 0
        """Number of results that this worker has stored in Redis."""
        self.beats = 0
        """Number of exchanges with Redis in which a heartbeat was sent and no command failed."""
        self.next_beat = 0.0
        """Monotonic time at which the next heartbeat is due."""
        self.connected_at = 0.0
        """Monotonic time at which the worker last registered."""
        self.next_warning = 0.0
        """Monotonic time after which a lost connection is logged again."""
        self.rejected: UserError | None = None
        """Why this worker may not join the queue, or None if the worker may join."""

    def next_task(self, wait_s: float) -> Task | None:
        """Returns the next task, or None if no task comes within about `wait_s` seconds.

        Only the main thread calls `next_task`. The method stores all finished results before it waits for a task.
        """
        local = self.local
        if (task := local.start_next()) is not None:
            return task
        if not local.connected:
            local.wait_for_task(wait_s)
            return local.start_next()
        with self.exchanging:
            # The consumer's thread may just have fetched tasks or lost the connection.
            if local.connected and not local.tasks and not local.stopping:
                try:
                    returned_only = self.more_returned
                    self._exchange(waits=True)
                    if returned_only and local.is_idle():
                        self._exchange(waits=True)
                except redis.RedisError as error:
                    self._disconnected(error)
        task = local.start_next()
        local.wake_if_tasks_wait()
        return task

    def _disconnected(self, error: redis.RedisError) -> None:
        """Record and log that the connection to Redis is lost. Results wait in `local` until Redis answers again."""
        now = time.monotonic()
        is_new_outage = self.local.connected and now - self.connected_at > STABLE_S
        if is_new_outage or now >= self.next_warning:
            log.warning("redis: %s; trying again until Redis answers", error)
            self.next_warning = now + REMIND_S
        self.local.set_connected(False)

    def run(self) -> None:
        """Exchange data with Redis until the worker stops. `run` is the main function of the consumer's thread."""
        try:
            self._run()
        except UserError as error:
            self.rejected = error
        finally:
            self.local.stop()

    def _run(self) -> None:
        backoff = Backoff(FIRST_RETRY_S, LONGEST_RETRY_S)
        local = self.local
        while True:
            local.wait_until_due(self.next_beat)
            try:
                with self.exchanging:
                    if not local.connected:
                        self._register()
                        execute(self.client, queue.make_groups(self.streams))
                        self._recover_delivered()
                        local.set_connected(True)
                        self.connected_at = time.monotonic()
                    self._exchange(waits=False)
                    if local.stopping and local.current is None and not local.cells and not local.results:
                        execute(self.client, queue.remove_worker(self.name))
                        return
                backoff.reset()
            except redis.RedisError as error:
                self._disconnected(error)
                if local.stopping and not local.cells and not local.results:
                    return
                time.sleep(backoff.next_s())

    def _register(self) -> None:
        """Register as a worker of the queue. Raises UserError if this worker does not satisfy a judge's requirement."""
        state = self._heartbeat(time.monotonic(), self.beats)
        reply = execute(self.client, requirements.register(self.name, state))
        requirements.check_registered(reply, self.about["isolation"])

    def _recover_delivered(self) -> None:
        """Fetch again the tasks that were delivered to this worker but were lost with the connection."""
        fetch = self._fetch_command(MAX_TASKS, self.streams[:-1], since="0")
        commands = {"fetch": fetch, "redeliver": queue.redeliver(self.name, MAX_TASKS)}
        replies = self.connection.execute(commands)
        delivered = Task.from_reply(replies["redeliver"]) + self._with_returned(replies["fetch"], MAX_TASKS)
        local = self.local
        with local.changed:
            known = [*local.tasks, *local.cells, local.current, *(task for task, _ in local.results)]
            entries = {task.entry for task in known if task is not None}
            local.tasks.extend(task for task in delivered if task.entry not in entries)

    def _exchange(self, *, waits: bool) -> None:
        """In one exchange with Redis, store results, return tasks, fetch tasks, and send a heartbeat if one is due.

        Args:
            waits: whether an idle worker fetches a task and waits for it. If False, an idle worker fetches no task.
        """
        local = self.local
        with local.changed:
            returnable = local.remove_returnable()
            results = list(local.results)
            running = local.current if local.is_long() else None
            count, block_ms = local.tasks_to_fetch(), None
            if local.is_idle():
                count, block_ms = (count, CELLS_BLOCK_MS if local.cells else BLOCK_MS) if waits else (0, None)
        if self.more_returned:
            block_ms = None
        if running is not None and running.is_cell:
            # A cell that was delivered cannot be cancelled.
            running = None
        finished = [(task, result) for task, result in results if task.is_cell or result.outcome != "refused"]
        commands: dict[str, Command] = {}
        if running is not None:
            commands["state"] = queue.get_state(running.id)
        commands |= self._store_commands(results, finished, returnable)
        now = time.monotonic()
        if now >= self.next_beat:
            self.next_beat = now + HEARTBEAT_S
            self._exit_if_hung(now)
            # A worker whose exchanges fail does no work and must not look alive, so `beats` counts complete exchanges.
            commands["heartbeat"] = heartbeat(self.name, self._heartbeat(now, self.beats + 1))
        if count:
            streams = self.streams[:-1] if self.more_returned else self.streams
            commands["fetch"] = self._fetch_command(count, streams, block_ms)
        requested_at = time.monotonic()
        replies = self.connection.execute(commands)
        if block_ms is None:
            local.record_exchange(time.monotonic() - requested_at)
        self.beats += "heartbeat" in commands
        if running is not None and replies["state"] not in ("", queue.delivered_state(running)):
            # The program was cancelled. A newer task may have the same id, but it does not need this result.
            self.abort(running.id)
        local.remove_stored(len(results))
        self.done += len(results)
        if finished:
            load = queue.pairs(replies["commit"])
            local.update_share(load["unfinished"], load["workers"])
        if count:
            returned_only = self.more_returned
            fetched = self._with_returned(replies["fetch"], count)
            local.add_fetched(fetched, len(fetched) if returned_only else count, requested_at)

    def _store_commands(
        self,
        results: Sequence[tuple[Task, RunResult]],
        finished: Sequence[tuple[Task, RunResult]],
        returnable: Sequence[Task],
    ) -> dict[str, Command]:
        """Returns the commands that store results and return tasks.

        Args:
            results: all results that are not stored yet.
            finished: the results of programs and cells that were not cancelled.
            returnable: tasks to return to the queue.
        """
        commands: dict[str, Command] = {}
        for task, result in results:
            if result.outcome == "refused" and not task.is_cell:
                # The program was cancelled while it ran. A repeated request with its id runs it again.
                commands[f"ack {task.stream} {task.entry}"] = ("XACK", task.stream, queue.GROUP, task.entry)
        if finished:
            commands["commit"] = queue.commit(finished)
        for task in returnable:
            commands[f"return {task.stream} {task.entry}"] = queue.return_task(task, self.name)
        return commands

    def _with_returned(self, reply: Any, count: int) -> list[Task]:
        """Returns the tasks in a reply to `_fetch_command`.

        If the reply announces returned tasks, the method claims these tasks and returns them, too.

        If the queue may contain more returned tasks, the worker must fetch all returned tasks before new tasks, so the
        new tasks in this reply go back to the queue.

        Args:
            reply: the reply to `_fetch_command`.
            count: the `count` that was passed to `_fetch_command`.
        """
        tasks, entries = Task.from_reply(reply), queue.returned_entries(reply)
        self.more_returned = len(entries) >= count
        if not entries:
            return tasks
        commands: dict[str, Command] = {}
        if self.more_returned:
            for task in tasks:
                if not task.is_cell:
                    commands[f"return {task.entry}"] = queue.return_task(task, self.name)
            tasks = [task for task in tasks if task.is_cell]
        commands["claim"] = queue.claim_returned(self.name, entries, len(entries))
        return tasks + Task.from_reply(self.connection.execute(commands)["claim"])

    def _fetch_command(
        self, count: int, streams: Sequence[str], block_ms: int | None = None, since: str = ">"
    ) -> Command:
        """Returns the command that fetches at most `count` tasks from each stream.

        Args:
            count: maximum number of tasks to fetch from each stream.
            streams: the streams from which tasks are fetched.
            block_ms: if there is no task, Redis waits this many milliseconds for one. If None, Redis does not wait.
            since: ">" to fetch new tasks, or "0" to fetch all tasks that were already delivered to this worker.
        """
        block = () if block_ms is None else ("BLOCK", block_ms)
        ids = [since] * len(streams)
        reader = ("XREADGROUP", "GROUP", queue.GROUP, self.name, "COUNT", count)
        return (*reader, *block, "STREAMS", *streams, *ids)

    def _heartbeat(self, now: float, number: int) -> dict[str, Any]:
        local = self.local
        return {
            **self.about,
            "beat": number,
            "done": self.done,
            "mean_s": local.mean_s,
            "sessions": local.sessions,
            "running_s": now - local.started_at if local.current else 0.0,
        }

    def _exit_if_hung(self, now: float) -> None:
        """End this process if its main thread hangs.

        After the end of this process, other workers get the process's tasks.
        """
        current, silent_s = self.local.current, now - self.local.active_at
        if silent_s < HUNG_S or (current is not None and silent_s < current.timeout_s + HUNG_S):
            return
        place = "between two programs" if current is None else f"in program {current.id}"
        log.critical("the sandbox hangs %s, so this worker ends", place)
        faulthandler.dump_traceback()
        os._exit(1)
