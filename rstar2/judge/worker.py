"""One worker process: takes programs from the queue, runs them one at a time, stores what became of them.

The main thread runs programs. A second thread speaks with Redis, so that storing results and fetching the
next programs costs the main thread nothing: it keeps a few short programs ahead in the inbox, and gives
them back when the one that runs turns out to be long.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
import time
from collections import Counter, deque
from pathlib import Path
from types import FrameType
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from rstar2.errors import RStarError
from rstar2.judge import queue
from rstar2.judge.queue import Task
from rstar2.judge.sandbox.host import Sandbox
from rstar2.judge.schema import RunResult
from rstar2.judge.settings import WorkerSettings

AHEAD_S = 0.02
"""How much work, by the mean of recent runs, a worker fetches ahead."""
MAX_AHEAD = 16
LONG_S = 0.03
"""A program that runs this long makes the worker give back what it fetched ahead."""
LINGER_S = 0.003
"""How long a result may wait for others to be stored with it while more work is at hand."""
BEAT_S = 0.5
DEAD_AFTER_S = 3.0
"""A worker whose heartbeat stood still this long, seen by a worker that was served all the while, is dead."""


class Worker:
    """See the module.

    Args:
        name: unique among all workers of the queue.
        client: connection with decoded responses; used by the second thread only.
        sandbox: runs the programs; started by `run`.
    """

    def __init__(self, name: str, client: redis.Redis, sandbox: Sandbox) -> None:
        self.name = name
        self.client = client
        self.sandbox = sandbox
        self.inbox: deque[Task] = deque()
        self.outbox: deque[tuple[Task, RunResult, float]] = deque()
        self.changed = threading.Condition()
        self.current: Task | None = None
        self.running_since: float | None = None
        self.stopping = False
        self.mean_s = 1.0
        self.done = 0
        self.outcomes: Counter[str] = Counter()

    # The main thread.

    def run(self) -> None:
        """Work until `stop` is called."""
        self.sandbox.start()
        self.sandbox.warm()
        link = threading.Thread(target=Link(self).run, name="link")
        link.start()
        try:
            while (task := self._next()) is not None:
                result = self._judge(task)
                with self.changed:
                    self.current = self.running_since = None
                    self.outbox.append((task, result, time.monotonic()))
                    self.changed.notify_all()
        finally:
            self.stop()
            link.join(10)
            self.sandbox.close()

    def stop(self) -> None:
        """End after the program that is running; what was fetched ahead goes back to the queue."""
        with self.changed:
            self.stopping = True
            self.changed.notify_all()

    def _next(self) -> Task | None:
        with self.changed:
            while not self.inbox and not self.stopping:
                self.changed.wait(1.0)
            if self.stopping:
                return None
            self.running_since = time.monotonic()
            self.current = self.inbox.popleft()
            return self.current

    def _judge(self, task: Task) -> RunResult:
        queued_s = max(0.0, time.time() - task.at)
        if task.tries >= queue.MAX_TRIES:
            reason = f"{task.tries} workers died while they held this program"
            return RunResult(id=task.id, outcome="lost", stderr=reason, queue_s=queued_s)
        started = time.monotonic()
        result = self.sandbox.run(task.request(), task.id).model_copy(update={"queue_s": queued_s})
        self.mean_s = 0.8 * self.mean_s + 0.2 * (time.monotonic() - started)
        self.done += 1
        self.outcomes[result.outcome] += 1
        return result


class Link:
    """The worker's second thread: everything that is said to Redis."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        # redis-py's own types are too wide for streams whose responses are decoded.
        self.client: Any = worker.client
        self.beats = 0
        self.next_beat = 0.0
        self.seen: dict[str, tuple[int, float]] = {}
        """Other workers: the last heartbeat seen and when it was first seen."""

    def run(self) -> None:
        """Speak with Redis until the worker stops; an error of ours ends the worker, to be started anew."""
        try:
            self._run()
        finally:
            self.worker.stop()

    def _run(self) -> None:
        delay = 0.05
        ready = False
        while True:
            try:
                if not ready:
                    self._make_groups()
                    ready = True
                if not self._step():
                    return
                delay = 0.05
            except redis.RedisError as error:
                # The server is gone, frozen or new: results stay in the outbox until it is back.
                print(f"{time.strftime('%X')} redis: {error}", file=sys.stderr, flush=True)
                ready = False
                self.seen.clear()
                if self.worker.stopping and not self.worker.outbox:
                    return
                time.sleep(delay)
                delay = min(delay * 2, 1.0)

    def _make_groups(self) -> None:
        for stream in (queue.TASKS, queue.RETURNED):
            try:
                self.client.xgroup_create(stream, queue.GROUP, id="0", mkstream=True)
            except redis.ResponseError as error:
                if "BUSYGROUP" not in str(error):
                    raise
        self._recover()

    def _recover(self) -> None:
        """Take up again what Redis says was delivered to us and we do not hold: a reply that never came."""
        held = {task.entry for task in self._held()}
        found = self.client.xreadgroup(queue.GROUP, self.worker.name, {queue.TASKS: "0", queue.RETURNED: "0"})
        missing = [task for task in _tasks(found) if task.entry not in held]
        with self.worker.changed:
            self.worker.inbox.extend(missing)
            self.worker.changed.notify_all()

    def _held(self) -> list[Task]:
        worker = self.worker
        with worker.changed:
            running = [worker.current] if worker.current else []
            return [*running, *worker.inbox, *(task for task, _, _ in worker.outbox)]

    def _step(self) -> bool:
        """One exchange with Redis. False: all is said and the worker stops."""
        worker = self.worker
        with worker.changed:
            if not self._something_to_say():
                worker.changed.wait(0.01)
            idle = worker.running_since is None and not worker.inbox and not worker.outbox
            results = list(worker.outbox)
            back = self._take_back()
            want = 0 if worker.stopping else self._want()
        pipe = self.client.pipeline(transaction=False)
        for task, result, _ in results:
            pipe.eval(*queue.commit_args(task, result))
        for task in back:
            pipe.eval(*queue.give_back_args(task))
        if want:
            streams = {queue.RETURNED: ">", queue.TASKS: ">"}
            pipe.xreadgroup(queue.GROUP, worker.name, streams, count=want, block=300 if idle else None)
        if time.monotonic() >= self.next_beat:
            self._beat(pipe)
        if len(pipe):
            answers = pipe.execute()
            self._take(answers, len(results), len(results) + len(back) if want else None)
        if worker.stopping and not worker.outbox and worker.running_since is None:
            self.client.eval(*queue.reap_args(worker.name))
            return False
        return True

    def _something_to_say(self) -> bool:
        worker = self.worker
        now = time.monotonic()
        if worker.outbox and (
            not worker.inbox or now - worker.outbox[0][2] > LINGER_S or len(worker.outbox) > 7
        ):
            return True
        return worker.stopping or now >= self.next_beat or (not worker.inbox and worker.running_since is None)

    def _want(self) -> int:
        worker = self.worker
        since = worker.running_since
        if since is not None and (time.monotonic() - since > LONG_S or worker.mean_s > LONG_S):
            return 0
        ahead = max(1, min(MAX_AHEAD, int(AHEAD_S / max(worker.mean_s, 1e-4))))
        return max(0, ahead - len(worker.inbox))

    def _take_back(self) -> list[Task]:
        worker = self.worker
        since = worker.running_since
        if not worker.inbox or not (worker.stopping or (since and time.monotonic() - since > LONG_S)):
            return []
        back = list(worker.inbox)
        worker.inbox.clear()
        return back

    def _take(self, answers: list[object], stored: int, fetched: int | None) -> None:
        worker = self.worker
        with worker.changed:
            for _ in range(stored):
                worker.outbox.popleft()
            if fetched is not None:
                worker.inbox.extend(_tasks(answers[fetched]))
            worker.changed.notify_all()

    def _beat(self, pipe: Any) -> None:
        """Say that we live, and look whether the others do."""
        worker = self.worker
        self.beats += 1
        self.next_beat = time.monotonic() + BEAT_S
        state = {
            "beat": self.beats,
            "at": time.time(),
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "isolation": worker.sandbox.isolation,
            "exceptions": worker.sandbox.exceptions(),
            "done": worker.done,
            "outcomes": worker.outcomes,
            "mean_s": worker.mean_s,
            "running_s": time.monotonic() - worker.running_since if worker.running_since else 0.0,
        }
        pipe.hset(queue.WORKERS, worker.name, json.dumps(state))
        self._bury()

    def _bury(self) -> None:
        now = time.monotonic()
        for name, text in self.client.hgetall(queue.WORKERS).items():
            beat = json.loads(text)["beat"]
            last, since = self.seen.get(name, (-1, now))
            if beat != last:
                self.seen[name] = (beat, now)
            elif name != self.worker.name and now - since > DEAD_AFTER_S:
                self.client.eval(*queue.reap_args(name))
                del self.seen[name]


def _tasks(answer: object) -> list[Task]:
    """The tasks in what XREADGROUP answered, `{stream: [[(entry, fields), …]]}` or a list of pairs."""
    if not answer:
        return []
    assert isinstance(answer, list)
    return [
        Task.from_fields(stream, entry, fields)
        for stream, entries in answer
        for entry, fields in entries
        if fields
    ]


def main() -> None:
    settings = WorkerSettings.model_validate_json(sys.stdin.read())
    client = redis.Redis.from_url(
        settings.redis_url,
        decode_responses=True,
        socket_timeout=5,
        socket_connect_timeout=2,
        retry=Retry(NoBackoff(), 0),
    )
    tier = settings.isolation
    sandbox = Sandbox(Path(settings.folder), tier, minimum=tier or "landlock")
    worker = Worker(settings.name, client, sandbox)

    def on_signal(_signal: int, _frame: FrameType | None) -> None:
        threading.Thread(target=worker.stop).start()

    signal.signal(signal.SIGTERM, on_signal)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        worker.run()
    except RStarError as error:
        sys.exit(f"{error.message}\n{error.hint}")


if __name__ == "__main__":
    main()
