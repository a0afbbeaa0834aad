"""The sessions that live in one worker: opened, given cells, ended when idle, old, dead or told to.

A worker does one thing at a time, so cells of its sessions wait for each other and for its programs.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel, ConfigDict

from rstar2.errors import Failure
from rstar2.judge.queue import Task
from rstar2.judge.sandbox.host import Sandbox
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
class Held:
    """One session and its limits."""

    session: Session
    asked: SessionRequest
    opened: float
    """Monotonic seconds."""
    used: float
    """Monotonic seconds at the end of the last cell."""

    def overdue(self, now: float) -> str:
        """Why it is to be ended now; empty if it is not."""
        if now - self.opened > self.asked.total_s:
            return f"the session ended: it was open for its {self.asked.total_s:g} s"
        if now - self.used > self.asked.idle_s:
            return f"the session ended: it was idle for {self.asked.idle_s:g} s"
        return ""


class Sessions:
    """See the module.

    Args:
        sandbox: the worker's, started.
        worker: its name, with which session ids begin.
    """

    def __init__(self, sandbox: Sandbox, worker: str) -> None:
        self.sandbox = sandbox
        self.worker = worker
        self.held: dict[str, Held] = {}
        self.ended: OrderedDict[str, str] = OrderedDict()
        """Why sessions ended, of the last so many."""
        self.next_sweep = 0.0

    def handle(self, task: Task) -> CellResult:
        """Do what one task orders."""
        order = Order.model_validate_json(task.body)
        queued_s = max(0.0, time.time() - task.at)
        self.sweep()
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

    def sweep(self) -> None:
        """End what is idle or old, at most once a second."""
        now = time.monotonic()
        if now < self.next_sweep:
            return
        self.next_sweep = now + SWEEP_S
        for name, held in list(self.held.items()):
            if why := held.overdue(now):
                self._end(name, why)

    def _open(self, run_id: str, order: Order) -> CellResult:
        if len(self.held) >= MAX_SESSIONS:
            return CellResult(id=run_id, outcome="refused", stderr=f"{MAX_SESSIONS} sessions are open here")
        try:
            session = self.sandbox.open_session(order.open.memory_mb)
        except Failure as error:
            return CellResult(id=run_id, outcome="refused", stderr=error.message)
        now = time.monotonic()
        self.held[order.session] = Held(session, order.open, now, now)
        return CellResult(id=run_id, outcome="ok", isolation=self.sandbox.isolation)

    def _cell(self, run_id: str, name: str, cell: CellRequest) -> CellResult:
        held = self.held[name]
        ran = held.session.run_cell(cell.code, cell.timeout_s, run_id)
        held.used = time.monotonic()
        if held.session.alive:
            return CellResult(**ran.model_dump())
        self._end(name, held.session.reason)
        return CellResult(**ran.model_dump(), session_alive=False, session_end=self.ended[name])

    def _gone(self, run_id: str, name: str) -> CellResult:
        why = self.ended.get(name, "there is no such session")
        return CellResult(id=run_id, outcome="lost", stderr=why, session_alive=False, session_end=why)

    def _end(self, name: str, why: str) -> None:
        self.held.pop(name).session.close()
        self.ended[name] = why
        while len(self.ended) > ENDED_KEPT:
            self.ended.popitem(last=False)
