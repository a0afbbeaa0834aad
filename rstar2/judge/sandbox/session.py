"""A session as the worker sees it: one process in the jail that keeps its state from cell to cell."""

from __future__ import annotations

import os
import select
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass

from rstar2.judge.sandbox.host.cgroups import Cgroup
from rstar2.judge.sandbox.inside.program import HEADER, NONCE, VALUE_BYTES
from rstar2.judge.sandbox.inside.session import LENGTH
from rstar2.judge.sandbox.jail import Jail, JailLost, Report, wait_readable
from rstar2.judge.sandbox.run import ProgramEnd, wait_for_end
from rstar2.judge.sandbox.streams import Streams, parse_report
from rstar2.judge.sandbox.zygote_kinds import ZygoteKind
from rstar2.judge.schema import Outcome, RunResult

_INTERRUPT_GRACE_S = 1.0
"""How long a cell may take to end after it was interrupted, before its whole session is killed: on a busy machine it
may have to wait for a processor first."""
_POLL_INTERVAL_S = 0.001
_FORGED = "the session ended: its code wrote where the answers to its cells go"
_KILL_TIMEOUT_S = 30.0


@dataclass
class _CellEnd:
    """How a cell ended."""

    kind: str = ""
    """Of its answer (`v`, `o`, `e` or `m`, see inside/session.py); empty: there is none."""
    text: str = ""
    limit: Outcome | None = None
    """The limit it met."""
    process_end: ProgramEnd | None = None
    """The end of its process; None while that lives."""
    cpu_s: float = 0.0
    """CPU seconds of the process so far."""
    kill_reason: str = ""
    """Why the session has to be killed with it; empty: it need not be."""

    def outcome(self, cgroup: Cgroup, kills: int) -> Outcome:
        if self.limit is not None:
            return self.limit
        if self.process_end is not None:
            return self.process_end.outcome(cgroup, kills)
        return "memory" if self.kind == "m" else "ok" if self.kind in ("o", "v") else "error"


class Session:
    """Made by Sandbox.open_session. Not for two threads at once, nor during a run of the same sandbox.

    A cell over its time is interrupted, as a notebook's stop button does, and its session lives on. If it
    does not stop at once, the session is killed. `alive` says whether it lives, and `reason` why not.
    """

    def __init__(
        self,
        jail: Jail,
        kind: ZygoteKind,
        key: int,
        streams: Streams,
        channel: socket.socket,
        cgroup: Cgroup,
        on_close: Callable[[], None],
    ) -> None:
        self._jail, self._kind, self._key = jail, kind, key
        self._streams, self._channel, self._cgroup = streams, channel, cgroup
        self._on_close = on_close
        self._kills = cgroup.kills()
        self._cpu_s = 0.0
        self.reason = ""

    @property
    def alive(self) -> bool:
        """Whether the process that holds the state still runs."""
        if not self.reason:
            try:
                self._jail.wait_until_clean()
                report = self._jail.ended.pop(self._key, None) or self._poll_for_end()
            except JailLost as error:
                self.end(f"the session was lost: {error}")
                return False
            if report is not None:
                self._end_with(ProgramEnd.of(report, None))
        return not self.reason

    def _poll_for_end(self) -> Report | None:
        """The report of this session's end, if its zygote has sent it already."""
        control = self._jail.zygote_socket(self._kind)
        while wait_readable(control, 0):
            if (report := self._jail.receive_report(self._kind, self._key)) is not None:
                return report
        return None

    def run_cell(self, code: str, timeout_s: float, cell_id: str) -> RunResult:
        """Run one cell. Never raises for what it does; a dead session's cells are `lost` and say why."""
        result = None
        if self.alive:
            self._streams.clear()
            began = time.monotonic()
            try:
                result = self._run_cell(code, began, timeout_s, cell_id)
            except (JailLost, OSError) as error:
                self._kill(f"the session was lost: {error}")
        tier = self._jail.spec["tier"]
        return result or RunResult(id=cell_id, outcome="lost", stderr=self.reason, isolation=tier)

    def _run_cell(self, code: str, began: float, timeout_s: float, cell_id: str) -> RunResult | None:
        """None: the session turned out to be dead."""
        data, nonce = code.encode(), os.urandom(NONCE)
        if self._channel_has_data():
            self._kill(_FORGED)
            return None
        try:
            cell = self._wait_for_cell(nonce, data, began + timeout_s)
        except BrokenPipeError:
            # It ended just now, and its zygote is about to report how; or it has only shut the channel, and is killed.
            self._jail.send(self._kind, {"op": "kill", "key": self._key})
            self._end_with(self._wait_for_process_end())
            return None
        self._streams.drain()
        wall_s = time.monotonic() - began
        outcome = cell.outcome(self._cgroup, self._kills)
        spent, self._cpu_s = cell.cpu_s - self._cpu_s, cell.cpu_s
        end = cell.process_end
        result = RunResult(
            id=cell_id,
            outcome=outcome,
            value=cell.text if cell.kind == "v" and outcome == "ok" else None,
            exit_code=end.exit_code if end is not None else None,
            cpu_s=max(0.0, spent),
            wall_s=wall_s,
            isolation=self._jail.spec["tier"],
            **self._streams.output(),
        )
        if end is not None:
            self._end_with(end, outcome, cell.kill_reason)
        return result

    def _channel_has_data(self) -> bool:
        """Whether the session has written to the channel, at a time when it must not."""
        return wait_readable(self._channel, 0) and bool(self._channel.recv(1, socket.MSG_PEEK))

    def _wait_for_cell(self, nonce: bytes, source: bytes, deadline: float) -> _CellEnd:
        """Send a cell, and wait until it has answered and its process waits for the next, or has ended."""
        cell = self._wait_for_answer(nonce, source, deadline)
        if cell.kind:
            self._wait_until_idle(cell, deadline)
        if cell.process_end is None and (cell.kill_reason or not cell.kind):
            self._jail.send(self._kind, {"op": "kill", "key": self._key})
            cell.process_end = self._wait_for_process_end()
        if cell.process_end is not None:
            cell.cpu_s = cell.process_end.cpu_s
        # The group also has what nobody waited for.
        cell.cpu_s = max(cell.cpu_s, self._cgroup.cpu_seconds())
        return cell

    def _wait_for_answer(self, nonce: bytes, source: bytes, deadline: float) -> _CellEnd:
        """Send a cell as fast as its process reads, and wait for its answer or the process's end.

        → which was first; neither: the cell does not stop, or its code wrote what is no answer, and is to be killed.
        BrokenPipeError: the process ended, or shut the channel, before it had read all.
        """
        control = self._jail.zygote_socket(self._kind)
        unsent = memoryview(nonce + len(source).to_bytes(LENGTH, "big") + source)
        poll = select.poll()
        poll.register(control, select.POLLIN)
        poll.register(self._channel, select.POLLIN | select.POLLOUT)
        self._streams.register(poll)
        limit: Outcome | None = None
        received = b""
        while True:
            left = max(0.0, deadline - time.monotonic())
            for fd, event in poll.poll(left * 1000):
                if fd == control.fileno():
                    if (report := self._jail.receive_report(self._kind, self._key)) is not None:
                        return _CellEnd(limit=limit, process_end=ProgramEnd.of(report, limit))
                elif fd != self._channel.fileno():
                    self._streams.read(fd, poll)
                elif event & select.POLLOUT:
                    unsent = unsent[self._channel.send(unsent, socket.MSG_DONTWAIT) :]
                    if not unsent:
                        poll.modify(fd, select.POLLIN)
                else:
                    chunk = self._channel.recv(1 << 16)
                    received += chunk
                    if not chunk:
                        poll.unregister(fd)
                    elif _is_forged(received, nonce):
                        return _CellEnd(limit=limit, kill_reason=_FORGED)
                    elif (answer := parse_report(received, nonce)) is not None:
                        return _CellEnd(*answer, limit=limit)
            if self._streams.flooded:
                return _CellEnd(limit="output_limit")
            # Only after a look at what came meanwhile: on a busy machine this process may be late itself.
            if left == 0 and limit is not None:
                return _CellEnd(limit=limit)
            if left == 0:
                limit = "timeout"
                deadline = time.monotonic() + _INTERRUPT_GRACE_S
                self._jail.send(self._kind, {"op": "interrupt", "key": self._key})

    def _wait_until_idle(self, cell: _CellEnd, deadline: float) -> None:
        """Wait until the process that has answered waits for the next cell, as its zygote sees it.

        Until then the cell still runs, whatever it wrote, and its limit holds.
        """
        deadline = max(deadline, time.monotonic() + _INTERRUPT_GRACE_S)
        while True:
            is_late = time.monotonic() > deadline
            op = "cpu" if self._cgroup.cpu_time_fd >= 0 else "cpu of all"
            report = self._jail.query(self._kind, op, self._key, "cpu_s")
            cell.cpu_s = float(report["cpu_s"])
            if "status" in report:
                # It ended just now; `alive` finds the report.
                return
            if report["waits"]:
                cell.kill_reason = _FORGED if self._channel_has_data() else ""
                return
            if is_late:
                cell.kind, cell.limit = "", cell.limit or "timeout"
                return
            time.sleep(_POLL_INTERVAL_S)

    def _wait_for_process_end(self) -> ProgramEnd:
        """Wait until the process, which was killed or is dying, has ended.

        Raises:
            JailLost: its zygote does not report it.
        """
        deadline = time.monotonic() + _KILL_TIMEOUT_S
        end = wait_for_end(self._jail, self._kind, self._key, self._streams, deadline)
        if end.problem:
            raise JailLost(end.problem)
        return end

    def _end_with(self, end: ProgramEnd, outcome: Outcome | None = None, reason: str = "") -> None:
        how = f"exit code {end.exit_code}" if end.exit_code >= 0 else f"signal {-end.exit_code}"
        why = f" ({outcome})" if outcome not in (None, "ok", "error") else ""
        self.end(reason or f"the session ended with {how}{why}")

    def end(self, reason: str) -> None:
        """Release what belongs to a session whose process has ended."""
        if not self.reason:
            self.reason = reason
            self._streams.close()
            self._channel.close()
            self._on_close()

    def _kill(self, reason: str) -> None:
        """Kill what is left of the session, and end it."""
        try:
            self._jail.send(self._kind, {"op": "kill", "key": self._key})
            self._wait_for_process_end()
        except JailLost as error:
            reason = f"{reason}; {error}"
        self.end(reason)

    def close(self) -> None:
        """End the session and everything in it."""
        if self.alive:
            self._kill("the session was closed")


def _is_forged(received: bytes, nonce: bytes) -> bool:
    """Whether the bytes so far are not the beginning, or are more than the whole, of an answer to this cell."""
    if not nonce.startswith(received[1 : 1 + NONCE]):
        return True
    length = int.from_bytes(received[1 + NONCE : HEADER], "big")
    return len(received) >= HEADER and (length > VALUE_BYTES or len(received) > HEADER + length)
