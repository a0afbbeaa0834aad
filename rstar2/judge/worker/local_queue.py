"""The queue between a worker's two threads.

The queue contains tasks that were fetched from Redis but not run yet, and results that were not yet stored in Redis.
"""

from __future__ import annotations

import threading
import time
from collections import deque

from rstar2.judge.queue import tasks as queue
from rstar2.judge.queue.tasks import Task
from rstar2.judge.schema import RunResult

MAX_PREFETCH = 16
"""Maximum number of tasks to prefetch if the connection to Redis is fast. As soon as this many results wait, the worker
stores them in Redis."""
MAX_PREFETCH_S = 0.1
"""If the connection to Redis is fast, the prefetched tasks together may take at most this many seconds. The estimate
for each task is the mean duration of recent tasks."""
MAX_AHEAD = 256
"""If the connection to Redis is slow, up to this many more tasks are prefetched, so that the worker is not idle during
an exchange with Redis."""
LONG_S = 0.05
"""If a program runs for more than this many seconds, the worker returns its prefetched tasks. The number of seconds is
higher if the connection to Redis is slow."""
LINGER_S = 0.01
"""While the worker has more tasks, a result may wait this many seconds, so that several results are stored together."""


class LocalQueue:
    """The tasks that one worker must run, and the results that the same worker must store in Redis.

    All fields except `sessions` may be changed only while `changed` is locked. A single field may be read without the
    lock.
    """

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.tasks: deque[Task] = deque()
        self.results: deque[tuple[Task, RunResult]] = deque()
        self.oldest_result_at = 0.0
        """Monotonic time at which the oldest result in `results` was added."""
        self.current: Task | None = None
        """The task that the main thread is running."""
        self.started_at = 0.0
        """Monotonic time at which the task `current` started."""
        self.active_at = time.monotonic()
        """Monotonic time at which the main thread last finished a task or asked for a task."""
        self.cells: list[Task] = []
        """Cells that were set aside: they run, or wait for their session, while the main thread runs other tasks."""
        self.mean_s = 0.02
        """Mean duration of recent tasks in seconds."""
        self.exchange_s = 0.0
        """Mean duration of recent exchanges with Redis in seconds."""
        self.share = 1
        """Maximum number of tasks that this worker should have at once, including the running task.

        While the queue is short, this number is 1.
        """
        self.connected = False
        """Whether this worker is registered in Redis and the last exchange with Redis succeeded."""
        self.stopping = False
        self.sessions = 0
        """Number of open sessions of this worker."""
        self.fetched_at = 0.0
        """Monotonic time at which the last successful command to fetch tasks was sent to Redis."""

    def start_next(self) -> Task | None:
        """Make the first waiting task the current task and return it.

        Returns None if no task waits, or if `stop` was called.
        """
        with self.changed:
            self.active_at = time.monotonic()
            if not self.tasks or self.stopping:
                return None
            self.current = self.tasks.popleft()
            self.started_at = self.active_at
            return self.current

    def finish(self, task: Task, result: RunResult) -> None:
        """Add the result of the current task to the results that the worker must store."""
        with self.changed:
            now = self.active_at = time.monotonic()
            self.mean_s = 0.8 * self.mean_s + 0.2 * (now - self.started_at)
            if not self.results:
                self.oldest_result_at = now
            self.results.append((task, result))
            self.current = None
            # If no tasks are left, the main thread exchanges data with Redis itself. Otherwise the consumer's thread
            # does, and short programs wake it only once for several results.
            is_due = self.share < 2 or self.mean_s > LINGER_S or len(self.results) >= MAX_PREFETCH
            if self.tasks and (is_due or self.tasks_to_fetch()):
                self.changed.notify_all()

    def set_cell_aside(self, task: Task) -> None:
        """Let the current cell continue in its session's thread while the main thread runs other tasks."""
        with self.changed:
            self.cells.append(task)
            self.current = None

    def finish_cell(self, task: Task, result: RunResult) -> None:
        """For a cell that was set aside, add its result to the results that the worker must store."""
        with self.changed:
            self.cells.remove(task)
            if not self.results:
                self.oldest_result_at = time.monotonic()
            self.results.append((task, result))
            self.changed.notify_all()

    def wake_if_tasks_wait(self) -> None:
        """If tasks wait, wake the consumer's thread. That thread returns the waiting tasks to the queue if the current
        task takes long."""
        with self.changed:
            if self.tasks:
                self.changed.notify_all()

    def stop(self) -> None:
        """Make the worker stop after its current task."""
        with self.changed:
            self.stopping = True
            self.changed.notify_all()

    def is_idle(self) -> bool:
        """Returns whether no task is running or waiting, apart from cells that were set aside."""
        return self.current is None and not self.tasks

    def tasks_to_fetch(self) -> int:
        """Returns the number of tasks to fetch from Redis now."""
        if self.stopping:
            return 0
        if self.is_idle():
            return self.share
        if len(self.tasks) > (self.share - 1) // 2 or self.is_long():
            return 0
        return self.share - 1 - len(self.tasks)

    def is_long(self) -> bool:
        """Returns whether the current task has run for more than `_long_s` seconds."""
        return self.current is not None and time.monotonic() - self.started_at > self._long_s

    @property
    def _long_s(self) -> float:
        """The waiting tasks are returned to the queue if the current task has run for more than this many seconds.

        This limit grows with the duration of an exchange with Redis, because two exchanges are needed before another
        worker can run a task that was returned to the queue.
        """
        return LONG_S + 4 * self.exchange_s

    def remove_returnable(self) -> list[Task]:
        """Remove the tasks that other workers should run, and return a list of them.

        If the current task has run for more than `_long_s` seconds, or if this worker is stopping, the list contains
        all waiting tasks except cells. If neither is true, the list is empty.
        """
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
        """Returns the data from which the worker decides which sessions are idle.

        Returns:
            A monotonic time, and the ids of all sessions that have unfinished cells in this worker. All cells that were
            requested before the monotonic time have been fetched.
        """
        with self.changed:
            unfinished = [*self.tasks, *self.cells, *([self.current] if self.current else [])]
            return self.fetched_at, {task.session for task in unfinished if task.is_cell}

    def add_fetched(self, tasks: list[Task], requested_count: int, requested_at: float) -> None:
        """Add tasks that were fetched from Redis.

        Args:
            tasks: the fetched tasks.
            requested_count: maximum number of tasks that the worker requested.
            requested_at: monotonic time at which the request was sent to Redis.
        """
        with self.changed:
            self.fetched_at = requested_at
            # Cells come before programs, and older tasks before newer ones.
            self.tasks = deque(sorted([*self.tasks, *tasks], key=lambda task: (not task.is_cell, task.at)))
            if len(tasks) < requested_count:
                # The queue has no more tasks. All other unfinished programs are at other workers.
                self.share = 1

    def remove_stored(self, count: int) -> None:
        """Remove the first `count` results, because these results are now stored in Redis."""
        with self.changed:
            for _ in range(count):
                self.results.popleft()
            self.oldest_result_at = time.monotonic()

    def update_share(self, unfinished: int, workers: int) -> None:
        """Compute `share` from the present state of the queue.

        Args:
            unfinished: number of programs in the queue, including running programs.
            workers: number of workers that share the programs.
        """
        with self.changed:
            # Tasks that are prefetched behind long programs would only be returned.
            prefetch = int(MAX_PREFETCH_S / self.mean_s) if self.mean_s < self._long_s else 1
            prefetch = min(MAX_PREFETCH, max(1, prefetch))
            # No other tasks can be fetched during an exchange, so this many more keep the worker busy.
            ahead = min(MAX_AHEAD, round(2 * self.exchange_s / self.mean_s))
            self.share = max(1, min(prefetch + ahead, unfinished // max(1, workers)))

    def record_exchange(self, seconds: float) -> None:
        """Include the duration of an exchange in the mean `exchange_s`.

        Call `record_exchange` only if Redis did not wait for tasks during the exchange.
        """
        with self.changed:
            weight = 0.2 if self.exchange_s else 1.0
            self.exchange_s += weight * (seconds - self.exchange_s)

    def wait_until_due(self, until: float) -> None:
        """Wait until the consumer's thread should exchange data with Redis, or until the monotonic time `until`."""
        with self.changed:
            while self.connected and not self.stopping and (now := time.monotonic()) < until:
                due = until
                # If the worker is idle, its main thread is fetching tasks, or about to.
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
        """Record whether the worker is connected to Redis, and wake the threads that wait for a change of the queue."""
        with self.changed:
            self.connected = connected
            self.changed.notify_all()

    def wait_for_task(self, wait_s: float) -> None:
        """Wait at most `wait_s` seconds until there are tasks, or until the worker is connected or stopping."""
        with self.changed:
            self.changed.wait_for(lambda: self.connected or self.tasks or self.stopping, wait_s)
