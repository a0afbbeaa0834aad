"""The sessions that live in one worker: opened, given cells, ended when idle, old, dead or told to.

A worker does one thing at a time, so cells of its sessions wait for each other and for its programs.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel, ConfigDict

from rstar2.errors import Failure
from rstar2.judge.queue.tasks import Task
from rstar2.judge.sandbox.sandbox import Sandbox
from rstar2.judge.sandbox.session import Session
from rstar2.judge.schema import CellRequest, CellResult, SessionRequest

MAX_SESSIONS = 256
"""In one worker; each is a process that holds its memory."""
ENDED_KEPT = 1000
SWEEP_S = 1.0


class Order(BaseModel):
    """What the HTTP process asks of a worker's sessions."""

    model_config = ConfigDict(extra="forbid")

    do: Literal["open", "cell", "close"]
    session: str
    open: SessionRequest = SessionRequest()
    cell: CellRequest | None = None


@dataclass
class OpenSession:
    """One session and its limits."""

    session: Session
    asked: SessionRequest
    opened: float
    """Monotonic seconds."""
    used: float
    """Monotonic seconds at the end of the last cell."""
    last: CellResult | None = None
    """Of the last cell."""

    @property
    def ends(self) -> float:
        """Monotonic seconds at which it ends in any case."""
        return self.opened + self.asked.total_s

    def overdue(self, now: float, unused_until: float) -> str:
        """Why it is to be ended now; empty if it is not.

        Args:
            now: monotonic seconds.
            unused_until: until when it is known that nobody asked for a cell, in the same.
        """
        if now >= self.ends:
            return f"the session ended: it was open for its {self.asked.total_s:g} s"
        if unused_until - self.used > self.asked.idle_s:
            return f"the session ended: it was idle for {self.asked.idle_s:g} s"
        return ""


class WorkerSessions:
    """See the module.

    Args:
        sandbox: the worker's, started.
        worker: its name, with which session ids begin.
    """

    def __init__(self, sandbox: Sandbox, worker: str) -> None:
        self.sandbox = sandbox
        self.worker = worker
        self.held: dict[str, OpenSession] = {}
        self.ended: OrderedDict[str, str] = OrderedDict()
        """Why sessions ended, of the last so many."""
        self.next_sweep = 0.0

    def handle(self, task: Task) -> CellResult:
        """Do what one task orders."""
        order = Order.model_validate_json(task.body)
        queued_s = max(0.0, time.time() - task.at)
        self._end_if_overdue(order.session, queued_s)
        if order.do == "open":
            result = self._open(task.id, order)
        elif order.session not in self.held:
            result = self._gone(task.id, order.session)
        elif order.do == "close":
            self._end(order.session, "the session ended: it was closed")
            result = CellResult(id=task.id, outcome="ok", session_alive=False)
        else:
            assert order.cell is not None
            result = self._cell(task.id, order.session, order.cell)
        return result.model_copy(update={"queue_s": queued_s})

    def sweep(self, heard: Callable[[], tuple[float, Collection[str]]]) -> None:
        """End what is idle or old, at most once a second.

        Args:
            heard: → monotonic seconds until which every cell asked for is known to the worker, and the
                sessions with cells that wait here.
        """
        now = time.monotonic()
        if now < self.next_sweep or not self.held:
            return
        self.next_sweep = now + SWEEP_S
        until, wanted = heard()
        for name, held in list(self.held.items()):
            if why := held.overdue(now, held.used if name in wanted else until):
                self._end(name, why)

    def _end_if_overdue(self, name: str, queued_s: float) -> None:
        """End a session that was too old or idle already when it was asked for `queued_s` ago."""
        now = time.monotonic()
        held = self.held.get(name)
        if held is not None and (why := held.overdue(now, now - queued_s)):
            self._end(name, why)

    def _open(self, run_id: str, order: Order) -> CellResult:
        if len(self.held) >= MAX_SESSIONS:
            return CellResult(id=run_id, outcome="refused", stderr=f"{MAX_SESSIONS} sessions are open here")
        try:
            session = self.sandbox.open_session(order.open.memory_mb)
        except Failure as error:
            return CellResult(id=run_id, outcome="refused", stderr=error.message)
        now = time.monotonic()
        self.held[order.session] = OpenSession(session, order.open, now, now)
        return CellResult(id=run_id, outcome="ok", value=order.session, isolation=self.sandbox.isolation)

    def _cell(self, run_id: str, name: str, cell: CellRequest) -> CellResult:
        held = self.held[name]
        if held.last is not None and held.last.id == run_id:
            # Queued again by a front whose Redis forgot that it ran.
            return held.last
        limit_s = min(cell.timeout_s, held.ends - time.monotonic())
        ran = held.session.run_cell(cell.code, limit_s, run_id)
        held.used = time.monotonic()
        why = held.overdue(held.used, held.used) if held.session.alive else held.session.reason
        if why:
            self._end(name, why)
        held.last = CellResult(**ran.model_dump(), session_alive=not why, session_end=why)
        return held.last

    def _gone(self, run_id: str, name: str) -> CellResult:
        why = self.ended.get(name, "there is no such session")
        return CellResult(id=run_id, outcome="lost", stderr=why, session_alive=False, session_end=why)

    def _end(self, name: str, why: str) -> None:
        self.held.pop(name).session.close()
        self.ended[name] = why
        while len(self.ended) > ENDED_KEPT:
            self.ended.popitem(last=False)
