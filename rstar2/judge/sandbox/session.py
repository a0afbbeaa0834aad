"""A session seen from outside: one process that keeps its state from cell to cell."""

from __future__ import annotations

import os
import select
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rstar2.judge.sandbox.cgroups import Cgroup
from rstar2.judge.sandbox.inside.program import HEADER, NONCE, VALUE_BYTES
from rstar2.judge.sandbox.inside.session import LENGTH
from rstar2.judge.sandbox.jail import Jail, JailLost, wait_readable
from rstar2.judge.sandbox.run import ProgramEnd, program_end, wait_for_end
from rstar2.judge.sandbox.streams import Streams
from rstar2.judge.sandbox.zygote_kinds import ZygoteKind
from rstar2.judge.schema import Isolation, Outcome, RunResult

_INTERRUPT_GRACE_S = 0.08
"""How long a cell may take to end after it was interrupted, before its whole session is killed."""
_POLL_INTERVAL_S = 0.001
_FORGED = "the session ended: its code wrote where the answers to its cells go"
_SEND_TIMEOUT_S = 5.0
_KILL_TIMEOUT_S = 5.0


@dataclass
class _CellEnd:
    """What became of a cell."""

    kind: str = ""
    """Of its answer; empty: there is none."""
    text: str = ""
    limit: Outcome | None = None
    """The limit it met."""
    final: ProgramEnd | None = None
    """The end of its process; None while that lives."""
    cpu_s: float = 0.0
    """Processor seconds of the process so far."""
    reason: str = ""
    """Why the session has to end with it; empty: it has not, or ends by itself."""


class Session:
    """Made by Sandbox.open_session; not for two threads at once, nor beside a run of the same sandbox.

    A cell over its time is interrupted, as a notebook's stop button does, and its session lives on. If it
    does not stop at once, the session is killed. Whether it lives is in `alive`, and why not in `reason`.
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
        """Whether the process that holds the state is still there."""
        if not self.reason:
            try:
                self._jail.wait_until_clean()
                report = self._jail.ended.pop(self._key, None) or self._poll_for_end()
            except JailLost as error:
                self.end(f"the session was lost: {error}")
                return False
            if report is not None:
                self._set_ended(program_end(report, None))
        return not self.reason

    def _poll_for_end(self) -> dict[str, Any] | None:
        """The report of this session's end, if its zygote has sent it already."""
        control = self._jail.zygote_socket(self._kind)
        while wait_readable(control, 0):
            if (report := self._jail.listen(self._kind, self._key)) is not None:
                return report
        return None

    @property
    def _isolation(self) -> Isolation:
        return self._jail.spec["tier"]

    def run_cell(self, code: str, timeout_s: float, cell_id: str) -> RunResult:
        """Run one cell. Never raises for what it does; a dead session's cells are `lost` and say why."""
        if not self.alive:
            return self._lost(cell_id)
        self._streams.forget()
        began = time.monotonic()
        try:
            return self._run(code, began, timeout_s, cell_id)
        except (JailLost, OSError) as error:
            self._kill(f"the session was lost: {error}")
            return self._lost(cell_id)

    def _kill(self, reason: str) -> None:
        """Kill whatever is left of the session, and let go of it."""
        try:
            self._jail.command(self._kind, "kill", self._key)
            self._wait_until_dead()
        except JailLost as error:
            reason = f"{reason}; {error}"
        self.end(reason)

    def _lost(self, cell_id: str) -> RunResult:
        return RunResult(id=cell_id, outcome="lost", stderr=self.reason, isolation=self._isolation)

    def _run(self, code: str, began: float, timeout_s: float, cell_id: str) -> RunResult:
        data, nonce = code.encode(), os.urandom(NONCE)
        self._channel.settimeout(_SEND_TIMEOUT_S)
        if self._channel_has_data():
            self._kill(_FORGED)
            return self._lost(cell_id)
        try:
            self._channel.sendall(nonce + len(data).to_bytes(LENGTH, "big") + data)
        except BrokenPipeError:
            # It ended just now, and its zygote is about to say how.
            self._set_ended(self._wait_until_dead())
            return self._lost(cell_id)
        cell = self._wait_for_cell(nonce, began + timeout_s)
        self._streams.drain()
        wall = time.monotonic() - began
        outcome = self._outcome(cell)
        spent, self._cpu_s = cell.cpu_s - self._cpu_s, cell.cpu_s
        final = cell.final
        if final is not None:
            self._set_ended(final, outcome, cell.reason)
        return RunResult(
            id=cell_id,
            outcome=outcome,
            stdout=self._streams.stdout.text(),
            stderr=self._streams.stderr.text(),
            value=cell.text if cell.kind == "v" and outcome == "ok" else None,
            exit_code=final.exit_code if final is not None else None,
            stdout_truncated=self._streams.stdout.truncated,
            stderr_truncated=self._streams.stderr.truncated,
            cpu_s=max(0.0, spent),
            wall_s=wall,
            isolation=self._isolation,
        )

    def _channel_has_data(self) -> bool:
        """Whether there is something on the channel, where nothing may be now."""
        return wait_readable(self._channel, 0) and bool(self._channel.recv(1, socket.MSG_PEEK))

    def _outcome(self, cell: _CellEnd) -> Outcome:
        if cell.limit is not None:
            return cell.limit
        if cell.final is not None:
            if cell.final.exit_code == -9 and self._cgroup.kills() > self._kills:
                return "memory"
            return "ok" if cell.final.exit_code == 0 else "error"
        return "memory" if cell.kind == "m" else "ok" if cell.kind in ("o", "v") else "error"

    def _wait_for_cell(self, nonce: bytes, deadline: float) -> _CellEnd:
        """See a cell to its end: it has answered and its process waits for the next, or its process has ended.

        Raises:
            Lost: the zygote is gone.
        """
        cell = self._wait_for_answer(nonce, deadline)
        if cell.kind:
            self._wait_until_idle(cell, deadline)
        if cell.final is None and (cell.reason or not cell.kind):
            self._jail.command(self._kind, "kill", self._key)
            cell.final = self._wait_until_dead()
        if cell.final is not None:
            cell.cpu_s = cell.final.cpu_s
        return cell

    def _wait_for_answer(self, nonce: bytes, deadline: float) -> _CellEnd:
        """Wait for the cell's answer or the process's end, whichever is first.

        Returns:
            What came; neither of them: the cell does not stop, or its code wrote what is no answer, and it is
            to be killed.

        Raises:
            Lost: the zygote is gone.
        """
        control = self._jail.zygote_socket(self._kind)
        poll = select.poll()
        for descriptor in (control, self._channel):
            poll.register(descriptor, select.POLLIN)
        self._streams.register(poll)
        limit: Outcome | None = None
        received = b""
        while True:
            left = deadline - time.monotonic()
            if self._streams.flooded:
                return _CellEnd(limit="output_limit")
            if left <= 0 and limit is not None:
                return _CellEnd(limit=limit)
            if left <= 0:
                limit, left = "timeout", _INTERRUPT_GRACE_S
                deadline = time.monotonic() + left
                self._jail.command(self._kind, "interrupt", self._key)
            for fd, _ in poll.poll(left * 1000):
                if fd == control.fileno():
                    if (report := self._jail.listen(self._kind, self._key)) is not None:
                        return _CellEnd(limit=limit, final=program_end(report, limit))
                elif fd != self._channel.fileno():
                    self._streams.read(fd, poll)
                else:
                    chunk = self._channel.recv(1 << 16)
                    received += chunk
                    if not chunk:
                        poll.unregister(fd)
                    elif _is_forged(received, nonce):
                        return _CellEnd(limit=limit, reason=_FORGED)
                    elif (answer := _parse(received)) is not None:
                        return _CellEnd(*answer, limit=limit)

    def _wait_until_idle(self, cell: _CellEnd, deadline: float) -> None:
        """Wait until the process that has answered waits for the next cell, as its zygote sees it.

        Until then the cell goes on, whatever it wrote, and its limit holds.

        Raises:
            Lost: the zygote is gone.
        """
        deadline = max(deadline, time.monotonic() + _INTERRUPT_GRACE_S)
        while True:
            self._jail.command(self._kind, "cpu", self._key)
            report = None
            while report is None:
                report = self._jail.listen(self._kind, self._key)
            cell.cpu_s = float(report["cpu_s"])
            if "status" in report:
                # It ended just now; the next look at it will find that.
                self._jail.ended[self._key] = report
                return
            if report["waits"]:
                cell.reason = _FORGED if self._channel_has_data() else ""
                return
            if time.monotonic() > deadline:
                cell.kind, cell.limit = "", cell.limit or "timeout"
                return
            time.sleep(_POLL_INTERVAL_S)

    def _wait_until_dead(self) -> ProgramEnd:
        """Wait until the process, which was killed or is dying, has ended.

        Raises:
            Lost: it cannot be known.
        """
        deadline = time.monotonic() + _KILL_TIMEOUT_S
        end = wait_for_end(self._jail, self._kind, self._key, self._streams, deadline)
        if end.problem:
            raise JailLost(end.problem)
        return end

    def _set_ended(self, final: ProgramEnd, outcome: Outcome | None = None, reason: str = "") -> None:
        how = f"exit code {final.exit_code}" if final.exit_code >= 0 else f"signal {-final.exit_code}"
        why = f" ({outcome})" if outcome not in (None, "ok", "error") else ""
        self.end(reason or f"the session ended with {how}{why}")

    def end(self, reason: str) -> None:
        """Let go of a session whose process is gone."""
        if not self.reason:
            self.reason = reason
            self._streams.close()
            self._channel.close()
            self._on_close()

    def close(self) -> None:
        """End the session and everything in it."""
        if self.alive:
            self._kill("the session was closed")


def _is_forged(received: bytes, nonce: bytes) -> bool:
    """Whether what came so far is not the beginning, or more than the whole, of an answer to this cell."""
    if not nonce.startswith(received[1 : 1 + NONCE]):
        return True
    length = int.from_bytes(received[1 + NONCE : HEADER], "big")
    return len(received) >= HEADER and (length > VALUE_BYTES or len(received) > HEADER + length)


def _parse(received: bytes) -> tuple[str, str] | None:
    """The kind and text of a complete answer; None while it is incomplete."""
    if len(received) < HEADER:
        return None
    length = int.from_bytes(received[1 + NONCE : HEADER], "big")
    if len(received) < HEADER + length:
        return None
    return received[:1].decode(errors="replace"), received[HEADER:].decode(errors="replace")
