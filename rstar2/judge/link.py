"""The thread of a worker that speaks with Redis.

While programs wait in the queue it fetches several ahead and stores results several at a time, so that one
exchange serves many programs; when the queue runs dry it takes one program at a time, so that no program
waits behind another while some other worker is free.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import redis

from rstar2.errors import UserError
from rstar2.judge import promise, queue
from rstar2.judge.queue import Task
from rstar2.judge.schema import CellResult, RunResult

MAX_AHEAD = 16
AHEAD_S = 0.1
"""How much work, by the mean of recent runs, is fetched ahead at most."""
QUEUED_S = 0.01
"""A program that waited this long was in a queue; one that did not may have been the only one."""
LONG_S = 0.05
"""A program that runs this long makes the worker give back what it fetched ahead."""
LINGER_S = 0.01
"""How long a result may wait for others to be stored with it while more work is at hand."""
BEAT_S = 0.5
BLOCK_MS = 300
LONGEST_RETRY_S = 0.25
WEDGED_S = 30.0
"""A program that is not over so long after its limit means that the sandbox itself hangs."""
log = logging.getLogger(__name__)


class Desk:
    """What the two threads of a worker share; every field is touched only with `changed` held."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.inbox: deque[Task] = deque()
        self.outbox: deque[tuple[Task, RunResult]] = deque()
        self.oldest = 0.0
        """Monotonic seconds at which the first result in the outbox came."""
        self.current: Task | None = None
        self.since = 0.0
        """Monotonic seconds at which `current` was begun."""
        self.mean_s = 0.02
        self.ahead = 0
        """How many programs to fetch ahead; 0 while the queue is short."""
        self.stopping = False
        self.sessions = 0
        """How many sessions the worker holds."""
        self.asked_at = 0.0
        """Monotonic seconds at which Redis was last asked for work and answered."""

    def next(self, patience_s: float) -> Task | None:
        """Wait for the next program; None when there is none in time or the worker is to end."""
        with self.changed:
            if not self.inbox and not self.stopping:
                self.changed.wait(patience_s)
            if not self.inbox or self.stopping:
                return None
            self.current = self.inbox.popleft()
            self.since = time.monotonic()
            return self.current

    def put(self, task: Task, result: RunResult) -> None:
        """Hand over the result of the current program."""
        with self.changed:
            now = time.monotonic()
            self.mean_s = 0.8 * self.mean_s + 0.2 * (now - self.since)
            if not self.outbox:
                self.oldest = now
            self.outbox.append((task, result))
            self.current = None
            # Waking the other thread costs more than a short program; it wakes by itself when need be.
            if not self.inbox or not self.ahead or len(self.outbox) >= MAX_AHEAD or self.wants():
                self.changed.notify_all()

    def stop(self) -> None:
        """Let the worker end after the program that is running."""
        with self.changed:
            self.stopping = True
            self.changed.notify_all()

    def idle(self) -> bool:
        """Nothing is running and nothing waits here."""
        return self.current is None and not self.inbox

    def wants(self) -> int:
        """How many programs to ask for now."""
        if self.stopping:
            return 0
        if self.idle():
            return max(1, self.ahead)
        if len(self.inbox) > self.ahead // 2 or self.is_long():
            return 0
        return self.ahead - len(self.inbox)

    def is_long(self) -> bool:
        """The running program has taken so long that none must wait behind it."""
        return self.current is not None and time.monotonic() - self.since > LONG_S

    def take_back(self) -> list[Task]:
        """The programs to give to other workers, because one runs for long or the worker is to end."""
        if not self.stopping and not self.is_long():
            return []
        back = [task for task in self.inbox if not task.is_cell]
        cells = [task for task in self.inbox if task.is_cell]
        self.inbox.clear()
        if self.stopping:
            self.outbox.extend((task, worker_ends(task)) for task in cells)
        else:
            self.inbox.extend(cells)
        return back

    def heard(self) -> tuple[float, set[str]]:
        """Until when everything queued for this worker has come here, and the sessions whose cells wait."""
        with self.changed:
            return self.asked_at, {task.session for task in self.inbox if task.is_cell}

    def got(self, asked: int, tasks: list[Task], asked_at: float) -> None:
        """Take in what was fetched, and learn from it how long the queue is."""
        with self.changed:
            self.asked_at = asked_at
            self.inbox.extend(tasks)
            # Ahead of programs that are mostly long, it would only be given back.
            most = min(MAX_AHEAD, int(AHEAD_S / self.mean_s)) if self.mean_s < LONG_S else 0
            is_long = len(tasks) >= asked and (asked > 1 or time.time() - tasks[0].at > QUEUED_S)
            self.ahead = min(most, 2 * asked) if is_long else 0
            self.changed.notify_all()

    def pause(self, until: float) -> None:
        """Wait, with `changed` held, until there is something to say or the monotonic time `until`."""
        while not self.stopping and not self.wants() and (now := time.monotonic()) < until:
            due = until
            if self.outbox:
                due = min(due, self.oldest + (LINGER_S if self.ahead else 0.0))
            if self.inbox and self.current is not None:
                due = min(due, self.since + LONG_S)
            if due <= now or len(self.outbox) >= MAX_AHEAD:
                return
            self.changed.wait(due - now)


def worker_ends(task: Task) -> CellResult:
    """The answer to a cell whose worker is told to stop."""
    said = queue.WORKER_GONE
    return CellResult(id=task.id, outcome="lost", stderr=said, session_alive=False, session_end=said)


class Link:
    """See the module.

    Args:
        name: the worker's, unique among all workers of the queue.
        client: connection with decoded responses, without retries of its own.
        desk: shared with the thread that runs programs.
        about: what a heartbeat tells of the worker besides.
        abort: ends the program with this id, if it is the one that runs.
    """

    def __init__(
        self,
        name: str,
        client: redis.Redis,
        desk: Desk,
        about: dict[str, Any],
        abort: Callable[[str], None],
    ) -> None:
        self.name = name
        self.streams = (queue.cells_stream(name), queue.RETURNED, queue.TASKS)
        """Read in this order."""
        # redis-py's own types are too wide for streams whose responses are decoded.
        self.client: Any = client
        self.desk = desk
        self.abort = abort
        self.about = {**about, "host": socket.gethostname(), "pid": os.getpid()}
        self.done = 0
        self.beats = 0
        self.next_beat = 0.0
        self.refused: UserError | None = None
        """Why the worker may not work for this queue."""

    def run(self) -> None:
        """Speak with Redis until the worker stops; an error of ours ends the worker, to be started anew."""
        try:
            self._run()
        except UserError as error:
            self.refused = error
        finally:
            self.desk.stop()

    def _run(self) -> None:
        delay = 0.05
        ready = False
        while True:
            try:
                if not ready:
                    self._join()
                    self._make_groups()
                    self._recover()
                    ready = True
                if not self._step():
                    return
                delay = 0.05
            except redis.RedisError as error:
                # The server is gone, frozen or new: results stay in the outbox until it is back.
                log.warning("redis: %s", error)
                ready = False
                if self.desk.stopping and not self.desk.outbox:
                    return
                time.sleep(delay)
                delay = min(delay * 2, LONGEST_RETRY_S)

    def _join(self) -> None:
        """Become a worker of the queue, also of one that has forgotten us.

        Raises:
            UserError: a judge promises its clients more than this worker's tier.
        """
        promised = self.client.eval(*promise.join_args(self.name, self._state(time.monotonic())))
        if promised:
            raise UserError(
                f"isolation {self.about['isolation']} is below the {promised} that a judge of this queue promises",
                f"run the worker under {promised}, or start the judge with a lower --isolation",
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
        found = self.client.xreadgroup(queue.GROUP, self.name, dict.fromkeys(self.streams, "0"))
        desk = self.desk
        with desk.changed:
            held = [
                *desk.inbox,
                *(task for task, _ in desk.outbox),
                *([desk.current] if desk.current else []),
            ]
            entries = {task.entry for task in held}
            desk.inbox.extend(task for task in _tasks(found) if task.entry not in entries)
            desk.changed.notify_all()

    def _step(self) -> bool:
        """One exchange with Redis. False: all is said and the worker stops."""
        desk = self.desk
        with desk.changed:
            desk.pause(self.next_beat)
            back = desk.take_back()
            results = list(desk.outbox)
            running = desk.current if desk.is_long() else None
            want, block = desk.wants(), BLOCK_MS if desk.idle() else None
        pipe = self.client.pipeline(transaction=False)
        if running is not None and running.is_cell:
            # A cell that was delivered cannot be cancelled.
            running = None
        if running is not None:
            pipe.get(queue.state_key(running.id))
        done = [(task, result) for task, result in results if task.is_cell or result.outcome != "refused"]
        for task, result in results:
            if result.outcome == "refused" and not task.is_cell:
                # Cancelled as it ran. Whoever asks for this id again has it run again.
                pipe.xack(task.stream, queue.GROUP, task.entry)
        if done:
            pipe.eval(*queue.commit_args(done))
        for task in back:
            pipe.eval(*queue.give_back_args(task))
        self._beat(pipe)
        if want:
            pipe.xreadgroup(queue.GROUP, self.name, dict.fromkeys(self.streams, ">"), count=want, block=block)
        asked_at = time.monotonic()
        answers = pipe.execute() if len(pipe) else []
        if running is not None and answers[0] not in (None, queue.delivered_state(running)):
            # Nobody waits for it, or only for another run under its id, which somebody asked for meanwhile.
            self.abort(running.id)
        with desk.changed:
            for _ in results:
                desk.outbox.popleft()
            desk.oldest = time.monotonic()
        self.done += len(results)
        if want:
            desk.got(want, _tasks(answers[-1]), asked_at)
        if desk.stopping and desk.current is None and not desk.outbox:
            self.client.eval(*queue.reap_args(self.name))
            return False
        return True

    def _beat(self, pipe: Any) -> None:
        """Say that we live, if it is time."""
        now = time.monotonic()
        if now < self.next_beat:
            return
        self.beats += 1
        self.next_beat = now + BEAT_S
        pipe.hset(queue.WORKERS, self.name, json.dumps(self._state(now)))
        self._end_if_wedged(now)

    def _state(self, now: float) -> dict[str, Any]:
        """What a heartbeat tells."""
        desk = self.desk
        return {
            **self.about,
            "beat": self.beats,
            "at": time.time(),
            "done": self.done,
            "mean_s": desk.mean_s,
            "sessions": desk.sessions,
            "running_s": now - desk.since if desk.current else 0.0,
        }

    def _end_if_wedged(self, now: float) -> None:
        """Die, to be started anew, rather than hang for ever; what this worker holds goes to the others."""
        current, since = self.desk.current, self.desk.since
        if current is None or now - since < WEDGED_S or now - since < current.timeout_s + WEDGED_S:
            return
        log.error("the sandbox hangs with program %s: this worker ends", current.id)
        os._exit(1)


def _tasks(answer: object) -> list[Task]:
    """The tasks in what XREADGROUP answered, `[[stream, [(entry, fields), …]], …]`."""
    if not answer:
        return []
    assert isinstance(answer, list)
    return [
        Task.from_fields(stream, entry, fields)
        for stream, entries in answer
        for entry, fields in entries
        if fields
    ]
