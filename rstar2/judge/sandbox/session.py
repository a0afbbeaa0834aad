"""`Session`: runs cells in one process of the jail, which keeps its variables from cell to cell."""

from __future__ import annotations

import math
import os
import select
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from rstar2.judge.sandbox.host.cgroups import Cgroup
from rstar2.judge.sandbox.inside import wire
from rstar2.judge.sandbox.inside.program import HEADER, NONCE, VALUE_BYTES
from rstar2.judge.sandbox.inside.session import LENGTH
from rstar2.judge.sandbox.jail import JailLost, Report, wait_readable
from rstar2.judge.sandbox.run import ProgramEnd
from rstar2.judge.sandbox.streams import Streams, parse_report
from rstar2.judge.schema import Isolation, Outcome, RunResult

_INTERRUPT_GRACE_S = 1.0
"""If an interrupted cell does not end within this many seconds, its whole session is killed. On a busy machine, the
cell may first have to wait for a CPU."""
_POLL_INTERVAL_S = 0.001
_FORGED = "the session ended: its code wrote to the channel for the answers of its cells"
_KILL_TIMEOUT_S = 30.0
_SHORTEST_WAIT_S = 0.02
"""Minimum number of seconds between two checks of a cell's time limit, if the cell had to wait for its turn."""


class _TimeLimit:
    """The time limit of a cell. The time that the cell spends waiting for its turn does not count.

    Args:
        deadline: monotonic time at which the limit is reached if the cell does not wait any more.
        ends_at: monotonic time at which the limit is reached even if the cell has waited.
        waited_s: number of seconds that the cell has spent waiting for its turn so far.
    """

    def __init__(self, deadline: float, ends_at: float = math.inf, waited_s: float = 0.0) -> None:
        self._deadline, self._ends_at, self._waited_s = deadline, ends_at, waited_s

    def seconds_left(self) -> float:
        return max(0.0, min(self._deadline, self._ends_at) - time.monotonic())

    def extend(self, waited_s: float) -> bool:
        """Extend the cell's time limit by the time that the cell has spent waiting since the last call of `extend`.

        Args:
            waited_s: total number of seconds that the cell has spent waiting for its turn.

        Returns:
            Whether the cell may run for longer because the limit was extended.
        """
        more_s, self._waited_s = waited_s - self._waited_s, waited_s
        self._deadline += more_s
        return more_s > 0 and time.monotonic() < self._ends_at


@dataclass
class _CellEnd:
    """How a cell ended."""

    kind: str = ""
    """Kind of the cell's answer (`v`, `o`, `e` or `m`, see inside/session.py), or empty if there is no answer."""
    text: str = ""
    """Text of the cell's answer."""
    limit: Outcome | None = None
    """The limit that the cell reached, or None if the cell reached no limit."""
    process_end: ProgramEnd | None = None
    """How the session's process ended, or None if the process is alive."""
    cpu_s: float = 0.0
    """CPU seconds that the session has used so far."""
    waited_s: float = 0.0
    """Seconds that the cell spent waiting for its turn."""
    kill_reason: str = ""
    """Why the session must be killed, or empty if the session need not be killed."""

    def outcome(self, cgroup: Cgroup, kills: int) -> Outcome:
        if self.limit is not None:
            return self.limit
        if self.process_end is not None:
            return self.process_end.outcome(cgroup, kills)
        return "memory" if self.kind == "m" else "ok" if self.kind in ("o", "v") else "error"


class Session:
    """A session, opened by `Sandbox.open_session`. Any thread may use a `Session`. Cells run one after another.

    Between cells, all processes of the session are paused (SIGSTOP). A cell that reaches its time limit is interrupted,
    as by the stop button of a notebook, and the session continues. If the interrupted cell does not stop soon, the
    session is killed.

    Args:
        tier: the isolation tier.
        control: a socket to the zygote that forked the session, for commands and reports about this session.
        streams: the worker's ends of the streams of the session's process.
        channel: a socket to the session's process, for cells and their answers.
        cgroup: the session's control group.
        on_close: a function that is called when the session has ended.
    """

    def __init__(
        self,
        tier: Isolation,
        control: socket.socket,
        streams: Streams,
        channel: socket.socket,
        cgroup: Cgroup,
        on_close: Callable[[], None],
    ) -> None:
        self._tier, self._control = tier, control
        self._streams, self._channel, self._cgroup = streams, channel, cgroup
        self._on_close = on_close
        self._kills = cgroup.kills()
        self._cpu_s = 0.0
        self._in_use = threading.RLock()
        self.reason = ""
        """Why the session has ended, or empty if the session is alive."""

    @property
    def alive(self) -> bool:
        """Whether the session's process is still alive."""
        with self._in_use:
            if not self.reason:
                try:
                    while wait_readable(self._control, 0):
                        if "status" in (report := self._receive()):
                            self._end_with(ProgramEnd.from_report(report, None))
                            break
                except JailLost as error:
                    self.end(f"the session was lost: {error}")
            return not self.reason

    def _send(self, op: str) -> None:
        """Send a command to the zygote. Raises JailLost if the zygote is gone."""
        try:
            wire.send(self._control, {"op": op})
        except (wire.Closed, OSError) as error:
            raise JailLost("its zygote is gone") from error

    def _receive(self) -> Report:
        """Wait for the zygote's next report. Raises JailLost if the zygote is gone, or could not start the session."""
        try:
            report: Report = wire.receive(self._control)[0]
        except (wire.Closed, OSError) as error:
            raise JailLost("its zygote is gone") from error
        if "failed" in report:
            raise JailLost(f"its zygote failed: {report['failed']}")
        return report

    def _query(self, op: str) -> Report:
        """Send a command to the zygote and return the zygote's report.

        If the session has ended, the report has a `status`.
        """
        self._send(op)
        return self._receive()

    def run_cell(self, code: str, timeout_s: float, cell_id: str, ends_at: float = math.inf) -> RunResult:
        """Run one cell and return its result. If the session is dead, the outcome is `lost`, and `stderr` says why.

        Args:
            code: Python source.
            timeout_s: number of seconds for which the cell may run. The time that the cell spends waiting for its turn
                does not count.
            cell_id: the id that the result gets.
            ends_at: monotonic time at which the cell must end, even if it had to wait.
        """
        with self._in_use:
            result = None
            if self.alive:
                self._streams.clear()
                began = time.monotonic()
                try:
                    result = self._run_cell(code, began, timeout_s, cell_id, ends_at)
                except (JailLost, OSError) as error:
                    self._kill(f"the session was lost: {error}")
            return result or RunResult(id=cell_id, outcome="lost", stderr=self.reason, isolation=self._tier)

    def _run_cell(
        self, code: str, began: float, timeout_s: float, cell_id: str, ends_at: float
    ) -> RunResult | None:
        """Run one cell. Returns None if the session was already dead."""
        data, nonce = code.encode(), os.urandom(NONCE)
        if self._channel_has_data():
            self._kill(_FORGED)
            return None
        try:
            cell = self._wait_for_cell(nonce, data, _TimeLimit(began + timeout_s, ends_at))
        except BrokenPipeError:
            # Either the process has just ended, and the zygote will report that. Or the process only closed the
            # channel. It is killed for that.
            self._send("kill")
            self._end_with(self._wait_for_process_end())
            return None
        self._streams.drain()
        wall_s = time.monotonic() - began - cell.waited_s
        outcome = cell.outcome(self._cgroup, self._kills)
        cell_cpu_s, self._cpu_s = cell.cpu_s - self._cpu_s, cell.cpu_s
        end = cell.process_end
        result = RunResult(
            id=cell_id,
            outcome=outcome,
            value=cell.text if cell.kind == "v" and outcome == "ok" else None,
            exit_code=end.exit_code if end is not None else None,
            cpu_s=max(0.0, cell_cpu_s),
            wall_s=max(0.0, wall_s),
            queue_s=cell.waited_s,
            isolation=self._tier,
            **self._streams.output(),
        )
        if end is not None:
            self._end_with(end, outcome, cell.kill_reason)
        return result

    def _channel_has_data(self) -> bool:
        """Returns whether the channel contains unread data that the session wrote.

        While no cell runs, the session must not write to the channel.
        """
        return wait_readable(self._channel, 0) and bool(self._read_channel(1, socket.MSG_PEEK))

    def _read_channel(self, count: int, flags: int = 0) -> bytes:
        """Read data that the session wrote to the channel. Returns b"" if the channel is closed."""
        try:
            return self._channel.recv(count, flags)
        except ConnectionResetError:
            # The process ended before it had read its whole cell.
            return b""

    def _wait_for_cell(self, nonce: bytes, source: bytes, limit: _TimeLimit) -> _CellEnd:
        """Send a cell. Wait until the session's process waits for the next cell, or until the process ends."""
        self._send("begin cell")
        cell = self._wait_for_answer(nonce, source, limit)
        if cell.kind:
            self._wait_until_stopped(cell, limit)
        if cell.process_end is None and (cell.kill_reason or not cell.kind):
            self._send("kill")
            cell.process_end = self._wait_for_process_end()
        if cell.process_end is not None:
            cell.cpu_s = cell.process_end.cpu_s
        # The control group also counts child processes that nobody waited for.
        cell.cpu_s = max(cell.cpu_s, self._cgroup.cpu_seconds())
        return cell

    def _wait_for_answer(self, nonce: bytes, source: bytes, limit: _TimeLimit) -> _CellEnd:
        """Send a cell, and wait until the cell has answered or its process has ended.

        If the result contains neither an answer nor an end of the process, the session must be killed, because its cell
        does not stop, has written too much output, or has written to the channel.

        Raises:
            BrokenPipeError: the session's process ended, or closed the channel, before it had read the whole cell.
        """
        control, channel = self._control.fileno(), self._channel.fileno()
        unsent = memoryview(nonce + len(source).to_bytes(LENGTH, "big") + source)
        poll = select.poll()
        poll.register(control, select.POLLIN)
        poll.register(channel, select.POLLIN | select.POLLOUT)
        self._streams.register(poll)
        cell = _CellEnd()
        received = b""
        has_waited = False
        while True:
            left = limit.seconds_left()
            wait_s = max(left, _SHORTEST_WAIT_S) if has_waited else left
            for fd, event in poll.poll(wait_s * 1000):
                if fd == control:
                    report = self._receive()
                    if "status" in report:
                        cell.process_end = ProgramEnd.from_report(report, cell.limit)
                        return cell
                elif fd != channel:
                    self._streams.read(fd, poll)
                elif event & select.POLLOUT:
                    unsent = unsent[self._channel.send(unsent, socket.MSG_DONTWAIT) :]
                    if not unsent:
                        poll.modify(fd, select.POLLIN)
                else:
                    chunk = self._read_channel(1 << 16)
                    received += chunk
                    if not chunk:
                        poll.unregister(fd)
                    elif _is_forged(received, nonce):
                        cell.kill_reason = _FORGED
                        return cell
                    elif (answer := parse_report(received, nonce)) is not None:
                        cell.kind, cell.text = answer
                        return cell
            if self._streams.flooded:
                cell.limit = "output_limit"
                return cell
            # The limit is checked after the events, because this process itself may be late on a busy machine.
            if left > 0:
                continue
            report = self._query("time waited")
            if "status" in report:
                cell.process_end = ProgramEnd.from_report(report, cell.limit)
                return cell
            cell.waited_s = report["waited_s"]
            if limit.extend(cell.waited_s):
                has_waited = True
            elif cell.limit is not None:
                return cell
            else:
                cell.limit = "timeout"
                limit = _TimeLimit(time.monotonic() + _INTERRUPT_GRACE_S, waited_s=cell.waited_s)
                self._send("interrupt")

    def _wait_until_stopped(self, cell: _CellEnd, limit: _TimeLimit) -> None:
        """Wait until the zygote reports that the session's processes are paused (SIGSTOP).

        Until they are paused, the cell counts as running and its time limit applies, even if the cell has answered.
        """
        grace = _TimeLimit(time.monotonic() + _INTERRUPT_GRACE_S, waited_s=cell.waited_s)
        while True:
            is_late = limit.seconds_left() == 0 and grace.seconds_left() == 0
            report = self._query("end cell" if self._cgroup.cpu_time_fd >= 0 else "end cell of all")
            if "status" in report:
                cell.process_end = ProgramEnd.from_report(report, cell.limit)
                return
            cell.cpu_s, cell.waited_s = report["cpu_s"], report["waited_s"]
            if report["is_stopped"]:
                cell.kill_reason = _FORGED if self._channel_has_data() else ""
                return
            is_extended = limit.extend(cell.waited_s), grace.extend(cell.waited_s)
            if is_late and not any(is_extended):
                cell.kind, cell.limit = "", cell.limit or "timeout"
                return
            time.sleep(_POLL_INTERVAL_S)

    def _wait_for_process_end(self) -> ProgramEnd:
        """After the session's process was killed, wait until it has ended.

        Raises:
            JailLost: the zygote does not report the end of the process in time.
        """
        deadline = time.monotonic() + _KILL_TIMEOUT_S
        while wait_readable(self._control, max(0.0, deadline - time.monotonic())):
            if "status" in (report := self._receive()):
                return ProgramEnd.from_report(report, None)
        raise JailLost("its zygote does not answer")

    def _end_with(self, end: ProgramEnd, outcome: Outcome | None = None, reason: str = "") -> None:
        status = f"exit code {end.exit_code}" if end.exit_code >= 0 else f"signal {-end.exit_code}"
        limit = f" ({outcome})" if outcome not in (None, "ok", "error") else ""
        self.end(reason or f"the session ended with {status}{limit}")

    def end(self, reason: str) -> None:
        """Release the resources of a session whose process has ended. Sets `self.reason` to `reason`."""
        with self._in_use:
            if not self.reason:
                self.reason = reason
                self._streams.close()
                self._channel.close()
                self._control.close()
                self._on_close()

    def _kill(self, reason: str) -> None:
        """Kill the session's processes, and end the session."""
        try:
            self._send("kill")
            self._wait_for_process_end()
        except JailLost as error:
            if str(error) not in reason:
                reason = f"{reason}; {error}"
        self.end(reason)

    def close(self) -> None:
        """End the session and all its processes."""
        with self._in_use:
            if self.alive:
                self._kill("the session was closed")


def _is_forged(received: bytes, nonce: bytes) -> bool:
    """Returns True if the received bytes are neither an answer to this cell nor the beginning of an answer.

    If the result is True, code in a cell has written to the channel.
    """
    if not nonce.startswith(received[1 : 1 + NONCE]):
        return True
    length = int.from_bytes(received[1 + NONCE : HEADER], "big")
    return len(received) >= HEADER and (length > VALUE_BYTES or len(received) > HEADER + length)
