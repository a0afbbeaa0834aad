"""The sessions that live in one worker: opened, given cells, ended when idle, old, dead or closed by the client.

A worker does one thing at a time, so cells of its sessions wait for each other and for its programs.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Collection
from dataclasses import dataclass

from rstar2.errors import Failure
from rstar2.judge.queue.tasks import SessionCommand, Task, lost_cell
from rstar2.judge.sandbox.sandbox import Sandbox
from rstar2.judge.sandbox.session import Session
from rstar2.judge.schema import CellRequest, CellResult, SessionRequest

MAX_SESSIONS = 256
"""In one worker; each is a process that holds its memory."""
ENDED_KEPT = 1000
CHECK_EVERY_S = 1.0


@dataclass
class OpenSession:
    session: Session
    asked: SessionRequest
    opened: float
    """Monotonic seconds."""
    used: float
    """Monotonic seconds at the end of the last cell."""
    last: CellResult | None = None

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
    """All sessions of one worker, whose sandbox is started."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox
        self.open: dict[str, OpenSession] = {}
        self.ended: OrderedDict[str, str] = OrderedDict()
        """Why sessions ended, of the last so many."""
        self.next_check = 0.0

    def run_task(self, task: Task) -> CellResult:
        command = SessionCommand.model_validate_json(task.body, extra="ignore")
        queued_s = max(0.0, time.time() - task.at)
        self._end_if_overdue(command.session, queued_s)
        if command.action == "open":
            result = self._open(task.id, command)
        elif command.session not in self.open:
            result = lost_cell(task.id, self.ended.get(command.session, "there is no such session"))
        elif command.action == "close":
            self._end(command.session, "the session ended: it was closed")
            result = CellResult(id=task.id, outcome="ok", session_alive=False)
        else:
            assert command.cell is not None
            result = self._run_cell(task.id, command.session, command.cell)
        return result.model_copy(update={"queue_s": queued_s})

    def end_overdue(self, activity: Callable[[], tuple[float, Collection[str]]]) -> None:
        """End what is idle or old, at most once a second; `activity` is `LocalQueue.session_activity`."""
        now = time.monotonic()
        if now < self.next_check or not self.open:
            return
        self.next_check = now + CHECK_EVERY_S
        until, in_use = activity()
        for name, found in list(self.open.items()):
            if reason := found.why_overdue(now, found.used if name in in_use else until):
                self._end(name, reason)

    def _end_if_overdue(self, name: str, queued_s: float) -> None:
        """End a session that was too old or idle already when it was asked for `queued_s` ago."""
        now = time.monotonic()
        found = self.open.get(name)
        if found is not None and (reason := found.why_overdue(now, now - queued_s)):
            self._end(name, reason)

    def _open(self, run_id: str, command: SessionCommand) -> CellResult:
        if len(self.open) >= MAX_SESSIONS:
            return CellResult(id=run_id, outcome="refused", stderr=f"{MAX_SESSIONS} sessions are open here")
        try:
            session = self.sandbox.open_session(command.open.memory_mb)
        except Failure as error:
            return CellResult(id=run_id, outcome="refused", stderr=error.message)
        now = time.monotonic()
        self.open[command.session] = OpenSession(session, command.open, now, now)
        return CellResult(id=run_id, outcome="ok", value=command.session, isolation=self.sandbox.isolation)

    def _run_cell(self, run_id: str, name: str, cell: CellRequest) -> CellResult:
        found = self.open[name]
        if found.last is not None and found.last.id == run_id:
            # Queued again by an HTTP process whose Redis forgot that it ran.
            return found.last
        limit_s = min(cell.timeout_s, found.ends - time.monotonic())
        ran = found.session.run_cell(cell.code, limit_s, run_id)
        found.used = time.monotonic()
        alive = found.session.alive
        reason = found.why_overdue(found.used, found.used) if alive else found.session.reason
        if reason:
            self._end(name, reason)
        found.last = CellResult(**ran.model_dump(), session_alive=not reason, session_end=reason)
        return found.last

    def _end(self, name: str, reason: str) -> None:
        self.open.pop(name).session.close()
        self.ended[name] = reason
        while len(self.ended) > ENDED_KEPT:
            self.ended.popitem(last=False)
