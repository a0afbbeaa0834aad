"""How a worker speaks with Redis.

While programs wait in the queue a thread of its own fetches several ahead and stores results several at a time,
so that one exchange serves many programs; never more than the worker's share of what is unfinished, so that
no program waits behind another while some other worker is free. When the queue is short the thread that runs
programs asks for each itself, because handing it over would take longer than the exchange.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import redis

from rstar2.errors import UserError
from rstar2.judge.queue import required_isolation
from rstar2.judge.queue import tasks as queue
from rstar2.judge.queue.redis_connection import Command, SyncRedisConnection
from rstar2.judge.queue.tasks import Task
from rstar2.judge.worker.local_queue import LocalQueue

BEAT_S = 0.5
MOST_HELD = 10_000
"""More programs than a worker ever holds."""
BLOCK_MS = 300
LONGEST_RETRY_S = 0.25
WEDGED_S = 30.0
"""A program that is not over so long after its limit means that the sandbox itself hangs."""
log = logging.getLogger(__name__)


class Consumer:
    """See the module.

    Args:
        name: the worker's, unique among all workers of the queue.
        client: connection with decoded responses, without retries of its own.
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
        self.commands = SyncRedisConnection(client)
        self.local = local
        self.abort = abort
        self.about = {**about, "host": socket.gethostname(), "pid": os.getpid()}
        self.speaking = threading.Lock()
        """OpenSession by the thread that speaks with Redis."""
        self.done = 0
        self.beats = 0
        self.next_beat = 0.0
        self.refused: UserError | None = None
        """Why the worker may not work for this queue."""

    def next(self, patience_s: float) -> Task | None:
        """The next program, for the thread that runs them; None if there is none in about this time.

        Results that were put on the local are stored before it waits.
        """
        local = self.local
        if (task := local.pop()) is not None:
            return task
        if not local.connected:
            local.wait(patience_s)
            return local.pop()
        with self.speaking:
            # The other thread may have heard of something, or lost the connection, just before.
            if local.connected and not local.inbox and not local.stopping:
                try:
                    self._step(waits=True)
                except redis.RedisError as error:
                    self._lost(error)
        task = local.pop()
        local.hand_over()
        return task

    def _lost(self, error: redis.RedisError) -> None:
        """The server is gone, frozen or new: results stay in the outbox until it is back."""
        log.warning("redis: %s", error)
        self.local.connect(False)

    def run(self) -> None:
        """Speak with Redis until the worker stops; an error of ours ends the worker, to be started anew."""
        try:
            self._run()
        except UserError as error:
            self.refused = error
        finally:
            self.local.stop()

    def _run(self) -> None:
        delay = 0.05
        local = self.local
        while True:
            local.pause(self.next_beat)
            try:
                with self.speaking:
                    if not local.connected:
                        self._join()
                        self._make_groups()
                        self._recover()
                        local.connect(True)
                    self._step(waits=False)
                    if local.stopping and local.current is None and not local.outbox:
                        self.client.eval(*queue.remove_worker_args(self.name))
                        return
                delay = 0.05
            except redis.RedisError as error:
                self._lost(error)
                if local.stopping and not local.outbox:
                    return
                time.sleep(delay)
                delay = min(delay * 2, LONGEST_RETRY_S)

    def _join(self) -> None:
        """Become a worker of the queue, also of one that has forgotten us.

        Raises:
            UserError: a judge promises its clients more than this worker's tier.
        """
        required = self.client.eval(
            *required_isolation.register_args(self.name, self._state(time.monotonic()))
        )
        if required:
            raise UserError(
                f"isolation {self.about['isolation']} is below the {required} that a judge of this queue promises",
                f"run the worker under {required}, or start the judge with a lower --isolation",
            )

    def _make_groups(self) -> None:
        for stream in self.streams:
            try:
                self.client.xgroup_create(stream, queue.GROUP, id="0", mkstream=True)
            except redis.ResponseError as error:
                if "BUSYGROUP" not in str(error):
                    raise

    def _recover(self) -> None:
        """Take up again what Redis says was delivered to us and we do not hold: a reply that never came."""
        [found] = self.commands.ask([self._ask_for(MOST_HELD, since="0")])
        local = self.local
        with local.changed:
            held = [
                *local.inbox,
                *(task for task, _ in local.outbox),
                *([local.current] if local.current else []),
            ]
            entries = {task.entry for task in held}
            local.inbox.extend(task for task in Task.all_of(found) if task.entry not in entries)

    def _step(self, *, waits: bool) -> None:
        """One exchange with Redis.

        Args:
            waits: where nothing runs, ask for a program and wait for it.
        """
        local = self.local
        with local.changed:
            back = local.take_back()
            results = list(local.outbox)
            running = local.current if local.is_long() else None
            want, block = local.wants(), None
            if local.idle():
                want, block = (want, BLOCK_MS) if waits else (0, None)
        if running is not None and running.is_cell:
            # A cell that was delivered cannot be cancelled.
            running = None
        commands: list[Command] = []
        if running is not None:
            commands.append(("GET", queue.state_key(running.id)))
        done = [(task, result) for task, result in results if task.is_cell or result.outcome != "refused"]
        for task, result in results:
            if result.outcome == "refused" and not task.is_cell:
                # Cancelled as it ran. Whoever asks for this id again has it run again.
                commands.append(("XACK", task.stream, queue.GROUP, task.entry))
        commit_at = len(commands)
        if done:
            commands.append(("EVAL", *queue.commit_args(done)))
        commands += [("EVAL", *queue.return_task_args(task)) for task in back]
        commands += self._beat()
        if want:
            commands.append(self._ask_for(want, block))
        asked_at = time.monotonic()
        answers = self.commands.ask(commands)
        if running is not None and answers[0] not in (None, queue.delivered_state(running)):
            # Nobody waits for it, or only for another run under its id, which somebody asked for meanwhile.
            self.abort(running.id)
        with local.changed:
            for _ in results:
                local.outbox.popleft()
            local.oldest = time.monotonic()
        self.done += len(results)
        if done:
            _, unfinished, workers = answers[commit_at]
            local.learn(unfinished, workers)
        if want:
            local.got(want, Task.all_of(answers[-1]), asked_at)

    def _ask_for(self, count: int, block_ms: int | None = None, since: str = ">") -> Command:
        """What asks for so many programs, and waits for one if it is to."""
        wait: list[str | int] = [] if block_ms is None else ["BLOCK", block_ms]
        ids = [since] * len(self.streams)
        return (
            "XREADGROUP",
            "GROUP",
            queue.GROUP,
            self.name,
            "COUNT",
            count,
            *wait,
            "STREAMS",
            *self.streams,
            *ids,
        )

    def _beat(self) -> list[Command]:
        """What says that we live, if it is time."""
        now = time.monotonic()
        if now < self.next_beat:
            return []
        self.beats += 1
        self.next_beat = now + BEAT_S
        self._end_if_wedged(now)
        return [("HSET", queue.WORKERS, self.name, json.dumps(self._state(now)))]

    def _state(self, now: float) -> dict[str, Any]:
        """What a heartbeat tells."""
        local = self.local
        return {
            **self.about,
            "beat": self.beats,
            "at": time.time(),
            "done": self.done,
            "mean_s": local.mean_s,
            "sessions": local.sessions,
            "running_s": now - local.since if local.current else 0.0,
        }

    def _end_if_wedged(self, now: float) -> None:
        """Die, to be started anew, rather than hang for ever; what this worker holds goes to the others."""
        current, since = self.local.current, self.local.since
        if current is None or now - since < WEDGED_S or now - since < current.timeout_s + WEDGED_S:
            return
        log.error("the sandbox hangs with program %s: this worker ends", current.id)
        os._exit(1)
