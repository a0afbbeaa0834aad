"""What a worker's two threads share: programs that wait to be run, results that wait to be stored."""

from __future__ import annotations

import threading
import time
from collections import deque

from rstar2.judge.queue import tasks as queue
from rstar2.judge.queue.tasks import Task
from rstar2.judge.schema import CellResult, RunResult

MOST = 16
"""Programs that a worker asks one stream for at most, and results that it does not keep waiting for others."""
MOST_S = 0.1
"""How much work, by the mean of recent runs, a worker holds at most."""
LONG_S = 0.05
"""A program that runs this long makes the worker give back what it fetched ahead."""
LINGER_S = 0.01
"""How long a result may wait for others to be stored with it while more work is at hand."""


class LocalQueue:
    """What the two threads of a worker share.

    Fields are changed only with `changed` held, but for `sessions`; a single one may be looked at without.
    """

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
        self.share = 1
        """How many programs to hold, with the one that runs; 1 while the queue is short."""
        self.connected = False
        """Whether Redis knows this worker, and answered when it was last spoken with."""
        self.stopping = False
        self.sessions = 0
        """How many sessions the worker holds."""
        self.asked_at = 0.0
        """Monotonic seconds at which Redis was last asked for work and answered."""

    def pop(self) -> Task | None:
        """The next program of those that are here, which is the current one from now on."""
        with self.changed:
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
            # When nothing is left to run, this thread speaks with Redis itself. Else, where programs are short, the
            # other one is woken for several results together.
            is_due = self.share < 2 or self.mean_s > LINGER_S or len(self.outbox) >= MOST
            if self.inbox and (is_due or self.wants()):
                self.changed.notify_all()

    def hand_over(self) -> None:
        """Have the other thread look after programs that wait here for the current one."""
        with self.changed:
            if self.inbox:
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
            return self.share
        if len(self.inbox) > (self.share - 1) // 2 or self.is_long():
            return 0
        return self.share - 1 - len(self.inbox)

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
        """Until when everything queued for this worker has come here, and the sessions whose cells are not over."""
        with self.changed:
            here = [*self.inbox, *([self.current] if self.current else [])]
            return self.asked_at, {task.session for task in here if task.is_cell}

    def got(self, asked: int, tasks: list[Task], asked_at: float) -> None:
        """Take in what was fetched."""
        with self.changed:
            self.asked_at = asked_at
            self.inbox.extend(tasks)
            if len(tasks) < asked:
                # What else is unfinished is at other workers.
                self.share = 1

    def learn(self, unfinished: int, workers: int) -> None:
        """Take in how many programs the queue holds, with those that run, and how many workers share them."""
        with self.changed:
            # Behind programs that are mostly long, others would only be given back.
            most = min(MOST, int(MOST_S / self.mean_s)) if self.mean_s < LONG_S else 1
            self.share = max(1, min(most, unfinished // max(1, workers)))

    def pause(self, until: float) -> None:
        """Wait until the thread that runs no programs has something to say, or the monotonic time `until`."""
        with self.changed:
            while self.connected and not self.stopping and (now := time.monotonic()) < until:
                due = until
                # Otherwise the other thread is asking for work, or about to.
                if not self.idle():
                    if self.wants() or len(self.outbox) >= MOST:
                        return
                    if self.outbox:
                        due = min(due, self.oldest + (LINGER_S if self.share > 1 else 0.0))
                    if self.inbox and self.current is not None:
                        due = min(due, self.since + LONG_S)
                if due <= now:
                    return
                self.changed.wait(due - now)

    def connect(self, connected: bool) -> None:
        """Say whether Redis can be spoken with."""
        with self.changed:
            self.connected = connected
            self.changed.notify_all()

    def wait(self, patience_s: float) -> None:
        """Wait for programs, for the connection to be mended, or for the end."""
        with self.changed:
            self.changed.wait_for(lambda: self.connected or self.inbox or self.stopping, patience_s)


def worker_ends(task: Task) -> CellResult:
    """The answer to a cell whose worker is told to stop."""
    said = queue.WORKER_GONE
    return CellResult(id=task.id, outcome="lost", stderr=said, session_alive=False, session_end=said)
