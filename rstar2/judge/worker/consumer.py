"""How a worker speaks with Redis: it fetches tasks, stores results, sends heartbeats.

While programs wait in the queue a thread of its own fetches several ahead and stores results several at a time,
so that one exchange serves many programs; never more than the worker's share of what is unfinished, so that no
program waits behind another while some other worker is free. When the queue is short the thread that runs programs
asks for each itself, because passing it between threads would take longer than the exchange.
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
from rstar2.judge.worker.local_queue import LocalQueue
from rstar2.retry import Backoff

MAX_HELD = 10_000
"""More programs than a worker ever holds."""
BLOCK_MS = 300
"""How long Redis may wait for a new task while this worker runs nothing."""
CELLS_BLOCK_MS = 10
"""How long Redis may wait for a new task while cells run in threads of their sessions. Their results are sent only
after this wait."""
FIRST_RETRY_S = 0.05
LONGEST_RETRY_S = 0.25
REMIND_S = 60.0
"""How often a lost connection is logged while it is lost."""
STABLE_S = 10.0
"""A connection that is lost sooner was not back: a Redis whose memory is full takes one command and refuses the next.
"""
HUNG_S = 300.0
"""The thread that runs programs hangs if it does nothing for this long, besides the time limit of its program. Building
a jail again, and loading a zygote's libraries, takes less on a slow machine."""
log = logging.getLogger(__name__)


class Consumer:
    """A worker's connection to the queue.

    Args:
        name: the worker's, unique among all workers of the queue.
        client: with decoded replies, without retries of its own.
        local: shared with the thread that runs programs.
        about: what a heartbeat tells of the worker besides.
        abort: ends the program with this id, if it is the one that runs.
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
        """Read in this order."""
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
        """Held by the thread that speaks with Redis."""
        self.more_returned = False
        """Whether there may be returned tasks that are older than any new one."""
        self.done = 0
        self.beats = 0
        """Heartbeats that Redis took together with everything else it was sent."""
        self.next_beat = 0.0
        self.connected_at = 0.0
        """Monotonic seconds at which the worker last registered."""
        self.next_warning = 0.0
        self.rejected: UserError | None = None
        """Why the worker may not work for this queue."""

    def next_task(self, wait_s: float) -> Task | None:
        """The next task, for the thread that runs them; None if there is none in about this time.

        Results are stored before it waits.
        """
        local = self.local
        if (task := local.start_next()) is not None:
            return task
        if not local.connected:
            local.wait_for_task(wait_s)
            return local.start_next()
        with self.exchanging:
            # The other thread may have fetched something, or lost the connection, just before.
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
        """The server is gone, frozen or new: results stay here until it is back."""
        now = time.monotonic()
        is_new = self.local.connected and now - self.connected_at > STABLE_S
        if is_new or now >= self.next_warning:
            log.warning("redis: %s; trying again until it answers", error)
            self.next_warning = now + REMIND_S
        self.local.set_connected(False)

    def run(self) -> None:
        """Speak with Redis until the worker stops."""
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
        """Become a worker of the queue; UserError if it does not fit what a judge of the queue requires."""
        state = self._heartbeat(time.monotonic(), self.beats)
        reply = execute(self.client, requirements.register(self.name, state))
        requirements.check_registered(reply, self.about["isolation"])

    def _recover_delivered(self) -> None:
        """Take in what Redis delivered to us and we do not hold: a reply that never came."""
        told = self._fetch_command(MAX_HELD, self.streams[:-1], since="0")
        replies = self.connection.execute({"told": told, "own": queue.claim_own(self.name, MAX_HELD)})
        found = Task.from_reply(replies["own"]) + self._with_returned(replies["told"], MAX_HELD)
        local = self.local
        with local.changed:
            held = [*local.tasks, *local.cells, local.current, *(task for task, _ in local.results)]
            entries = {task.entry for task in held if task is not None}
            local.tasks.extend(task for task in found if task.entry not in entries)

    def _exchange(self, *, waits: bool) -> None:
        """Send results and ask for tasks, in one exchange with Redis; where nothing runs, wait for one if `waits`."""
        local = self.local
        with local.changed:
            returned = local.remove_returnable()
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
        commands: dict[str, Command] = {}
        if running is not None:
            commands["state"] = queue.get_state(running.id)
        finished = [(task, result) for task, result in results if task.is_cell or result.outcome != "refused"]
        for task, result in results:
            if result.outcome == "refused" and not task.is_cell:
                # Cancelled as it ran. If it is asked for again under its id, it runs again.
                commands[f"ack {task.stream} {task.entry}"] = ("XACK", task.stream, queue.GROUP, task.entry)
        if finished:
            commands["commit"] = queue.commit(finished)
        for task in returned:
            commands[f"return {task.stream} {task.entry}"] = queue.return_task(task, self.name)
        now = time.monotonic()
        if now >= self.next_beat:
            self.next_beat = now + HEARTBEAT_S
            self._exit_if_hung(now)
            # The next one has the same number if anything of this exchange fails: such a worker does no work.
            commands["heartbeat"] = heartbeat(self.name, self._heartbeat(now, self.beats + 1))
        if count:
            streams = self.streams[:-1] if self.more_returned else self.streams
            commands["fetch"] = self._fetch_command(count, streams, block_ms)
        asked_at = time.monotonic()
        replies = self.connection.execute(commands)
        if block_ms is None:
            local.exchanged(time.monotonic() - asked_at)
        self.beats += "heartbeat" in commands
        if running is not None and replies["state"] not in ("", queue.delivered_state(running)):
            # Nobody waits for it, or only for another run under its id, which was asked for meanwhile.
            self.abort(running.id)
        local.remove_stored(len(results))
        self.done += len(results)
        if finished:
            load = queue.pairs(replies["commit"])
            local.update_share(load["unfinished"], load["workers"])
        if count:
            returned_only = self.more_returned
            fetched = self._with_returned(replies["fetch"], count)
            local.add_fetched(fetched, len(fetched) if returned_only else count, asked_at)

    def _with_returned(self, reply: Any, count: int) -> list[Task]:
        """The tasks in a reply to a fetch of so many from each stream, and the returned ones that it tells of.

        Where there may be more of those, they come before what is new, and the new tasks wait with them.
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
        """Asks for so many tasks of each stream, and waits for one if it is to."""
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
        """End this process if the thread that runs programs hangs; what this worker holds goes to the others."""
        current, silent_s = self.local.current, now - self.local.active_at
        if silent_s < HUNG_S or (current is not None and silent_s < current.timeout_s + HUNG_S):
            return
        doing = "between two programs" if current is None else f"with program {current.id}"
        log.critical("the sandbox hangs %s: this worker ends", doing)
        faulthandler.dump_traceback()
        os._exit(1)
