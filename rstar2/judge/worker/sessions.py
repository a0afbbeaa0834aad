"""The sessions that live in one worker: opened, given cells, ended when idle, old, dead or closed by the client.

Each session has a thread that runs its cells one after another. The worker waits a moment for a cell, because most are
short, and then goes on to other sessions and programs. The cells that compute take turns (`sandbox.inside.turns`).
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from functools import partial

from pydantic import ValidationError

from rstar2.errors import Failure
from rstar2.judge.queue import tasks as queue
from rstar2.judge.queue.tasks import SessionCommand, Task, lost_cell
from rstar2.judge.sandbox.sandbox import Sandbox
from rstar2.judge.sandbox.session import Session
from rstar2.judge.schema import CellRequest, CellResult, SessionRequest
from rstar2.judge.worker.local_queue import LONG_S, LocalQueue

MAX_SESSIONS = 256
"""In one worker; each is a process that holds its memory."""
ENDED_KEPT = 1000
CHECK_EVERY_S = 1.0
log = logging.getLogger(__name__)


@dataclass
class OpenSession:
    session: Session
    asked: SessionRequest
    opened: float
    """Monotonic seconds."""
    used: float
    """Monotonic seconds at the end of the last cell."""
    last: CellResult | None = None
    thread: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "session"))
    """Runs its cells, and closes it, in the order of the requests."""
    unfinished: list[Future[CellResult]] = field(default_factory=list)
    """What its thread may not have done yet. For the worker's main thread only."""

    def is_in_use(self) -> bool:
        """Whether its thread has something to do. For the worker's main thread only."""
        self.unfinished = [future for future in self.unfinished if not future.done()]
        return bool(self.unfinished)

    @property
    def ends(self) -> float:
        """Monotonic seconds at which it ends in any case."""
        return self.opened + self.asked.total_s

    def why_overdue(self, now: float, unused_until: float) -> str:
        """Why it is to be ended now; empty if it is not. `unused_until`: nobody asked for a cell until then."""
        if now >= self.ends:
            return f"the session ended: it was open for its {self.asked.total_s:g} s"
        if unused_until - self.used > self.asked.idle_s:
            return f"the session ended: it was idle for {self.asked.idle_s:g} s"
        return ""


class WorkerSessions:
    """All sessions of one worker, whose sandbox is started.

    Its methods are for the worker's main thread. What runs in the thread of a session uses that session only.
    """

    def __init__(self, sandbox: Sandbox, local: LocalQueue) -> None:
        self.sandbox, self.local = sandbox, local
        self.changing = threading.Lock()
        """Held while `open` or `ended` changes, or a session's thread gets a task."""
        self.open: dict[str, OpenSession] = {}
        self.ended: OrderedDict[str, str] = OrderedDict()
        """Why the last sessions ended, by name."""
        self.next_check = 0.0
        self.errors: list[BaseException] = []
        """What threads of sessions raised."""

    def run_task(self, task: Task) -> None:
        """Run the current task of the local queue, and hand in its result. A long cell goes on beside later tasks."""
        try:
            command = SessionCommand.model_validate_json(task.body, extra="ignore")
        except ValidationError as error:
            log.error("task %r is nothing for a session: %s", task.id, error)
            self.local.finish(task, lost_cell(task.id, queue.UNREADABLE))
            return
        if command.action == "open":
            self.local.finish(task, self._open(task.id, command, _queued_s(task)))
        elif (future := self._submit(task, command)) is None:
            self.local.finish(task, self._lost(task, command))
        elif wait([future], LONG_S).done:
            self.local.finish(task, future.result())
        else:
            self.local.set_cell_aside(task)
            future.add_done_callback(partial(self._finish_cell, task))

    def _submit(self, task: Task, command: SessionCommand) -> Future[CellResult] | None:
        """Hand a task to the thread of its session. None if there is no such session any more."""
        with self.changing:
            session = self.open.get(command.session)
            if session is None:
                return None
            future = session.thread.submit(self._run, task, command)
            session.unfinished.append(future)
            return future

    def _finish_cell(self, task: Task, future: Future[CellResult]) -> None:
        """Hand in the result of a cell that was set aside."""
        error = None if future.cancelled() else future.exception()
        if error is not None:
            self.errors.append(error)
        is_lost = future.cancelled() or error is not None
        self.local.finish_cell(task, lost_cell(task.id, queue.WORKER_GONE) if is_lost else future.result())

    def raise_errors(self) -> None:
        """Raise what the thread of a session raised: the worker cannot go on."""
        if self.errors:
            raise self.errors[0]

    def finish(self) -> None:
        """Wait for the cells that run now. Those that have not begun are lost."""
        with self.changing:
            sessions = list(self.open.values())
        for session in sessions:
            session.thread.shutdown(wait=False, cancel_futures=True)
        for session in sessions:
            session.thread.shutdown()

    def _run(self, task: Task, command: SessionCommand) -> CellResult:
        """In the thread of a session: do what a task asks."""
        queued_s = _queued_s(task)
        self._end_if_overdue(command.session, queued_s)
        if command.session not in self.open:
            return self._lost(task, command)
        if command.action == "close":
            self._end(command.session, "the session ended: it was closed")
            return CellResult(id=task.id, outcome="ok", session_alive=False, queue_s=queued_s)
        assert command.cell is not None
        return self._run_cell(task.id, command.session, command.cell, queued_s)

    def _lost(self, task: Task, command: SessionCommand) -> CellResult:
        reason = self.ended.get(command.session, "there is no such session")
        return lost_cell(task.id, reason).model_copy(update={"queue_s": _queued_s(task)})

    def end_overdue(self, activity: Callable[[], tuple[float, Collection[str]]]) -> None:
        """End what is idle or old, at most once a second; `activity` is `LocalQueue.session_activity`."""
        now = time.monotonic()
        if now < self.next_check or not self.open:
            return
        self.next_check = now + CHECK_EVERY_S
        until, in_use = activity()
        with self.changing:
            sessions = list(self.open.items())
        for name, found in sessions:
            # A cell that runs ends with its session's time, and then the session does.
            if found.is_in_use():
                continue
            if reason := found.why_overdue(now, found.used if name in in_use else until):
                self._end(name, reason)

    def _end_if_overdue(self, name: str, queued_s: float) -> None:
        """End a session that was too old or idle already when it was asked for `queued_s` ago."""
        now = time.monotonic()
        found = self.open.get(name)
        if found is not None and (reason := found.why_overdue(now, now - queued_s)):
            self._end(name, reason)

    def _open(self, run_id: str, command: SessionCommand, queued_s: float) -> CellResult:
        if len(self.open) >= MAX_SESSIONS:
            reason = f"{MAX_SESSIONS} sessions are open here"
            return CellResult(id=run_id, outcome="refused", stderr=reason, queue_s=queued_s)
        try:
            session = self.sandbox.open_session(command.open.memory_mb)
        except Failure as error:
            return CellResult(id=run_id, outcome="refused", stderr=error.message, queue_s=queued_s)
        now = time.monotonic()
        with self.changing:
            self.open[command.session] = OpenSession(session, command.open, now, now)
        isolation = self.sandbox.isolation
        return CellResult(
            id=run_id, outcome="ok", value=command.session, isolation=isolation, queue_s=queued_s
        )

    def _run_cell(self, run_id: str, name: str, cell: CellRequest, queued_s: float) -> CellResult:
        found = self.open[name]
        if found.last is not None and found.last.id == run_id:
            # Queued again by an HTTP process whose Redis forgot that it ran.
            return found.last
        ran = found.session.run_cell(cell.code, cell.timeout_s, run_id, ends=found.ends)
        ran.queue_s += queued_s
        found.used = time.monotonic()
        alive = found.session.alive
        reason = found.why_overdue(found.used, found.used) if alive else found.session.reason
        if reason:
            self._end(name, reason)
        found.last = CellResult(**ran.model_dump(), session_alive=not reason, session_end=reason)
        return found.last

    def _end(self, name: str, reason: str) -> None:
        with self.changing:
            ended = self.open.pop(name)
            self.ended[name] = reason
            while len(self.ended) > ENDED_KEPT:
                self.ended.popitem(last=False)
            # Its thread still answers the cells that wait: they are lost.
            ended.thread.shutdown(wait=False)
        ended.session.close()


def _queued_s(task: Task) -> float:
    return max(0.0, time.time() - task.at)
