"""What a worker's two threads share: tasks it has fetched and not yet run, results that are not yet in Redis."""

from __future__ import annotations

import threading
import time
from collections import deque

from rstar2.judge.queue import tasks as queue
from rstar2.judge.queue.tasks import Task
from rstar2.judge.schema import RunResult

MAX_PREFETCH = 16
"""Tasks that a worker fetches from one stream at most, and results that it does not keep waiting for others."""
MAX_PREFETCH_S = 0.1
"""How much work, by the mean of recent runs, a worker holds at most, besides what a slow link asks for."""
MAX_AHEAD = 256
"""Tasks that a worker holds at most besides those, so that it has something to run while it exchanges with Redis."""
LONG_S = 0.05
"""A program that runs this long, or longer if the link is slow, makes the worker return what it has prefetched."""
LINGER_S = 0.01
"""How long a result may wait for others to be stored with it while there are more tasks here."""


class LocalQueue:
    """Tasks to run and results to store of one worker.

    Fields are changed only with `changed` held, but for `sessions`; a single one may be read without.
    """

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.tasks: deque[Task] = deque()
        self.results: deque[tuple[Task, RunResult]] = deque()
        self.oldest_result_at = 0.0
        """Monotonic seconds at which the first of `results` came."""
        self.current: Task | None = None
        self.started_at = 0.0
        """Monotonic seconds at which `current` was begun."""
        self.active_at = time.monotonic()
        """Monotonic seconds at which the thread that runs programs last ended one or looked for one."""
        self.cells: list[Task] = []
        """Cells that run, or wait for their session, while the worker does something else."""
        self.mean_s = 0.02
        """Of recent runs."""
        self.exchange_s = 0.0
        """Seconds that an exchange with Redis takes, recently."""
        self.share = 1
        """How many tasks to hold, with the one that runs; 1 while the queue is short."""
        self.connected = False
        """Whether Redis knows this worker, and answered the last time."""
        self.stopping = False
        self.sessions = 0
        """How many sessions the worker holds."""
        self.fetched_at = 0.0
        """Monotonic seconds at which Redis was last asked for tasks and answered."""

    def start_next(self) -> Task | None:
        """The next task of those that are here, which is the current one from now on."""
        with self.changed:
            self.active_at = time.monotonic()
            if not self.tasks or self.stopping:
                return None
            self.current = self.tasks.popleft()
            self.started_at = self.active_at
            return self.current

    def finish(self, task: Task, result: RunResult) -> None:
        with self.changed:
            now = self.active_at = time.monotonic()
            self.mean_s = 0.8 * self.mean_s + 0.2 * (now - self.started_at)
            if not self.results:
                self.oldest_result_at = now
            self.results.append((task, result))
            self.current = None
            # When nothing is left to run, this thread speaks with Redis itself. Else, where programs are short, the
            # other one is woken for several results together.
            is_due = self.share < 2 or self.mean_s > LINGER_S or len(self.results) >= MAX_PREFETCH
            if self.tasks and (is_due or self.tasks_to_fetch()):
                self.changed.notify_all()

    def set_cell_aside(self, task: Task) -> None:
        """Let the current cell go on while the worker does something else."""
        with self.changed:
            self.cells.append(task)
            self.current = None

    def finish_cell(self, task: Task, result: RunResult) -> None:
        """Take the result of a cell that was set aside."""
        with self.changed:
            self.cells.remove(task)
            if not self.results:
                self.oldest_result_at = time.monotonic()
            self.results.append((task, result))
            self.changed.notify_all()

    def wake_if_tasks_wait(self) -> None:
        """Have the other thread watch how long the tasks here wait for the current one."""
        with self.changed:
            if self.tasks:
                self.changed.notify_all()

    def stop(self) -> None:
        """Let the worker end after the program that is running."""
        with self.changed:
            self.stopping = True
            self.changed.notify_all()

    def is_idle(self) -> bool:
        """Nothing is running and nothing waits here."""
        return self.current is None and not self.tasks

    def tasks_to_fetch(self) -> int:
        """How many tasks to ask Redis for now."""
        if self.stopping:
            return 0
        if self.is_idle():
            return self.share
        if len(self.tasks) > (self.share - 1) // 2 or self.is_long():
            return 0
        return self.share - 1 - len(self.tasks)

    def is_long(self) -> bool:
        """The running program has taken so long that none must wait behind it."""
        return self.current is not None and time.monotonic() - self.started_at > self._long_s

    @property
    def _long_s(self) -> float:
        """Seconds after which the running program is long. A returned task takes two exchanges to run elsewhere."""
        return LONG_S + 4 * self.exchange_s

    def remove_returnable(self) -> list[Task]:
        """Remove the tasks that other workers should have, because one runs for long or this worker is to end."""
        if not self.stopping and not self.is_long():
            return []
        returnable = [task for task in self.tasks if not task.is_cell]
        cells = [task for task in self.tasks if task.is_cell]
        self.tasks.clear()
        if self.stopping:
            self.results.extend((task, queue.lost_cell(task.id, queue.WORKER_GONE)) for task in cells)
        else:
            self.tasks.extend(cells)
        return returnable

    def session_activity(self) -> tuple[float, set[str]]:
        """Until when every cell queued for this worker has come here, and the sessions with cells not yet run."""
        with self.changed:
            here = [*self.tasks, *self.cells, *([self.current] if self.current else [])]
            return self.fetched_at, {task.session for task in here if task.is_cell}

    def add_fetched(self, tasks: list[Task], asked_for: int, asked_at: float) -> None:
        with self.changed:
            self.fetched_at = asked_at
            # Of each kind the oldest first; cells before programs.
            self.tasks = deque(sorted([*self.tasks, *tasks], key=lambda task: (not task.is_cell, task.at)))
            if len(tasks) < asked_for:
                # What else is unfinished is at other workers.
                self.share = 1

    def remove_stored(self, count: int) -> None:
        """Forget the first results, which are in Redis now."""
        with self.changed:
            for _ in range(count):
                self.results.popleft()
            self.oldest_result_at = time.monotonic()

    def update_share(self, unfinished: int, workers: int) -> None:
        """Take in how many programs the queue holds, with those that run, and how many workers share them."""
        with self.changed:
            # Behind programs that are mostly long, others would only be returned.
            most = int(MAX_PREFETCH_S / self.mean_s) if self.mean_s < self._long_s else 1
            most = min(MAX_PREFETCH, max(1, most))
            # While one exchange is under way, nothing else can be asked for.
            ahead = min(MAX_AHEAD, round(2 * self.exchange_s / self.mean_s))
            self.share = max(1, min(most + ahead, unfinished // max(1, workers)))

    def exchanged(self, seconds: float) -> None:
        """Take in how long an exchange took in which Redis waited for nothing."""
        with self.changed:
            weight = 0.2 if self.exchange_s else 1.0
            self.exchange_s += weight * (seconds - self.exchange_s)

    def wait_until_due(self, until: float) -> None:
        """Wait until the thread that runs no programs should speak with Redis, or the monotonic time `until`."""
        with self.changed:
            while self.connected and not self.stopping and (now := time.monotonic()) < until:
                due = until
                # Otherwise the other thread is asking for tasks, or about to.
                if not self.is_idle():
                    if self.tasks_to_fetch() or len(self.results) >= MAX_PREFETCH:
                        return
                    if self.results:
                        due = min(due, self.oldest_result_at + (LINGER_S if self.share > 1 else 0.0))
                    if self.tasks and self.current is not None:
                        due = min(due, self.started_at + self._long_s)
                if due <= now:
                    return
                self.changed.wait(due - now)

    def set_connected(self, connected: bool) -> None:
        """Say whether Redis can be spoken with."""
        with self.changed:
            self.connected = connected
            self.changed.notify_all()

    def wait_for_task(self, wait_s: float) -> None:
        """Wait for tasks, for the connection to Redis, or for the end."""
        with self.changed:
            self.changed.wait_for(lambda: self.connected or self.tasks or self.stopping, wait_s)
