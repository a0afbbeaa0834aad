"""Opens the sessions of one worker, runs their cells, and ends the sessions.

A session ends if the client closes it, if it is idle or open for too long, or if its process dies. Each session has a
thread that runs its cells one after another. The main thread waits briefly for each cell, because most cells are short.
If the cell is not finished then, the main thread continues with other sessions and programs. If several cells compute,
they take turns (see `sandbox.inside.turns`).
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
"""Maximum number of open sessions of one worker. Each session is a process with its own memory."""
MAX_END_REASONS = 1000
"""Maximum number of ended sessions for which the worker remembers why they ended."""
CHECK_EVERY_S = 1.0
log = logging.getLogger(__name__)


@dataclass
class OpenSession:
    """One open session, with its limits and its thread."""

    session: Session
    limits: SessionRequest
    opened_at: float
    """Monotonic time at which the session was opened."""
    used_at: float
    """Monotonic time at which the session's last cell ended."""
    last_result: CellResult | None = None
    thread: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "session"))
    """The session's thread, which runs cells and closes the session. It carries out requests in the order in which they
    came."""
    unfinished: list[Future[CellResult]] = field(default_factory=list)
    """Tasks that were passed to the session's thread and may be unfinished. Only the worker's main thread uses this
    list."""

    def is_in_use(self) -> bool:
        """Returns whether the session's thread has unfinished tasks.

        Call this method only in the worker's main thread.
        """
        self.unfinished = [future for future in self.unfinished if not future.done()]
        return bool(self.unfinished)

    @property
    def ends_at(self) -> float:
        """Monotonic time at which the session ends even if it is in use."""
        return self.opened_at + self.limits.total_s

    def why_overdue(self, now: float, unused_until: float) -> str:
        """Returns why the session must end now, or an empty string if it can continue.

        Args:
            now: the current time in monotonic seconds.
            unused_until: a monotonic time. Between the session's last cell and this time, no new cell was requested.
        """
        if now >= self.ends_at:
            return f"the session ended: it reached its maximum lifetime of {self.limits.total_s:g} s"
        if unused_until - self.used_at > self.limits.idle_s:
            return f"the session ended: it was idle for {self.limits.idle_s:g} s"
        return ""


class WorkerSessions:
    """All sessions of one worker. The worker's sandbox must already be started.

    Call the public methods of `WorkerSessions` only in the worker's main thread. Code in the thread of a session may
    use only that session.
    """

    def __init__(self, sandbox: Sandbox, local: LocalQueue) -> None:
        self.sandbox, self.local = sandbox, local
        self.changing = threading.Lock()
        """Locked while `open` or `ended` changes, and while a session's thread gets a task."""
        self.open: dict[str, OpenSession] = {}
        """Open sessions, keyed by id."""
        self.ended: OrderedDict[str, str] = OrderedDict()
        """Dict from session id to the reason why the session ended, for the most recently ended sessions."""
        self.next_check = 0.0
        self.errors: list[BaseException] = []
        """Exceptions that were raised in the threads of sessions."""

    def run_task(self, task: Task) -> None:
        """Run the current task of the local queue, and add the task's result to the local queue.

        A long cell continues while later tasks run.
        """
        try:
            command = SessionCommand.model_validate_json(task.body, extra="ignore")
        except ValidationError as error:
            log.error("task %r is not a command for a session: %s", task.id, error)
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
        """Pass a task to the thread of its session. Returns None if the session is not open."""
        with self.changing:
            session = self.open.get(command.session)
            if session is None:
                return None
            future = session.thread.submit(self._run, task, command)
            session.unfinished.append(future)
            return future

    def _finish_cell(self, task: Task, future: Future[CellResult]) -> None:
        """For a cell that was set aside, add its result to the local queue."""
        error = None if future.cancelled() else future.exception()
        if error is not None:
            self.errors.append(error)
        is_lost = future.cancelled() or error is not None
        self.local.finish_cell(task, lost_cell(task.id, queue.WORKER_GONE) if is_lost else future.result())

    def raise_errors(self) -> None:
        """If the thread of a session raised an exception, raise the exception in the calling thread.

        The worker cannot continue after an exception in the thread of a session.
        """
        if self.errors:
            raise self.errors[0]

    def finish(self) -> None:
        """Wait until the running cells have ended. Cells that have not started get the outcome `lost`."""
        with self.changing:
            sessions = list(self.open.values())
        for session in sessions:
            session.thread.shutdown(wait=False, cancel_futures=True)
        for session in sessions:
            session.thread.shutdown()

    def _run(self, task: Task, command: SessionCommand) -> CellResult:
        """Carry out a task in the thread of its session."""
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
        """End sessions that are idle or open for too long. Checks the sessions at most once in `CHECK_EVERY_S` seconds.

        Args:
            activity: the method `LocalQueue.session_activity`.
        """
        now = time.monotonic()
        if now < self.next_check or not self.open:
            return
        self.next_check = now + CHECK_EVERY_S
        fetched_until, sessions_with_cells = activity()
        with self.changing:
            sessions = list(self.open.items())
        for session_id, session in sessions:
            # When the session's time is over, its running cell is stopped first. Then the session ends.
            if session.is_in_use():
                continue
            unused_until = session.used_at if session_id in sessions_with_cells else fetched_until
            if reason := session.why_overdue(now, unused_until):
                self._end(session_id, reason)

    def _end_if_overdue(self, session_id: str, queued_s: float) -> None:
        """End a session if it was already idle or open for too long when its cell was requested.

        The cell was requested `queued_s` seconds ago.
        """
        now = time.monotonic()
        session = self.open.get(session_id)
        if session is not None and (reason := session.why_overdue(now, now - queued_s)):
            self._end(session_id, reason)

    def _open(self, run_id: str, command: SessionCommand, queued_s: float) -> CellResult:
        if len(self.open) >= MAX_SESSIONS:
            reason = f"this worker already has {MAX_SESSIONS} open sessions"
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

    def _run_cell(self, run_id: str, session_id: str, cell: CellRequest, queued_s: float) -> CellResult:
        session = self.open[session_id]
        if session.last_result is not None and session.last_result.id == run_id:
            # Redis lost its data after the cell ran, so an HTTP process queued the cell again.
            return session.last_result
        result = session.session.run_cell(cell.code, cell.timeout_s, run_id, ends_at=session.ends_at)
        result.queue_s += queued_s
        session.used_at = time.monotonic()
        alive = session.session.alive
        reason = session.why_overdue(session.used_at, session.used_at) if alive else session.session.reason
        if reason:
            self._end(session_id, reason)
        session.last_result = CellResult(**result.model_dump(), session_alive=not reason, session_end=reason)
        return session.last_result

    def _end(self, session_id: str, reason: str) -> None:
        with self.changing:
            ended = self.open.pop(session_id)
            self.ended[session_id] = reason
            while len(self.ended) > MAX_END_REASONS:
                self.ended.popitem(last=False)
            # The thread still answers the cells that wait for it: they are lost.
            ended.thread.shutdown(wait=False)
        ended.session.close()


def _queued_s(task: Task) -> float:
    return max(0.0, time.time() - task.at)
