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
from rstar2.judge.sandbox.jail import Enclosure, Lost, readable
from rstar2.judge.sandbox.run import Ending, ending, wait_for_end
from rstar2.judge.sandbox.streams import Streams
from rstar2.judge.sandbox.zygote_kinds import Weight
from rstar2.judge.schema import Isolation, Outcome, RunResult

_GRACE_S = 0.08
"""How long a cell may take to end after it was interrupted, before its whole session is killed."""
_ASK_AGAIN_S = 0.001
_FORGED = "the session ended: its code wrote where the answers to its cells go"
_SEND_S = 5.0
_DYING_S = 5.0


@dataclass
class _Course:
    """What became of a cell."""

    kind: str = ""
    """Of its answer; empty: there is none."""
    text: str = ""
    limit: Outcome | None = None
    """The limit it met."""
    final: Ending | None = None
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
        jail: Enclosure,
        weight: Weight,
        key: int,
        streams: Streams,
        channel: socket.socket,
        cgroup: Cgroup,
        on_close: Callable[[], None],
    ) -> None:
        self._jail, self._weight, self._key = jail, weight, key
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
                self._jail.settle()
                report = self._jail.ended.pop(self._key, None) or self._hear()
            except Lost as error:
                self.end(f"the session was lost: {error}")
                return False
            if report is not None:
                self._mourn(ending(report, None))
        return not self.reason

    def _hear(self) -> dict[str, Any] | None:
        """The report of this session's end, if its zygote has sent it already."""
        control = self._jail.control(self._weight)
        while readable(control, 0):
            if (report := self._jail.listen(self._weight, self._key)) is not None:
                return report
        return None

    @property
    def _isolation(self) -> Isolation:
        return self._jail.plan["tier"]

    def run_cell(self, code: str, timeout_s: float, cell_id: str) -> RunResult:
        """Run one cell. Never raises for what it does; a dead session's cells are `lost` and say why."""
        if not self.alive:
            return self._lost(cell_id)
        self._streams.forget()
        began = time.monotonic()
        try:
            return self._run(code, began, timeout_s, cell_id)
        except (Lost, OSError) as error:
            self._give_up(f"the session was lost: {error}")
            return self._lost(cell_id)

    def _give_up(self, reason: str) -> None:
        """Kill whatever is left of the session, and let go of it."""
        try:
            self._jail.tell(self._weight, "kill", self._key)
            self._await_end()
        except Lost as error:
            reason = f"{reason}; {error}"
        self.end(reason)

    def _lost(self, cell_id: str) -> RunResult:
        return RunResult(id=cell_id, outcome="lost", stderr=self.reason, isolation=self._isolation)

    def _run(self, code: str, began: float, timeout_s: float, cell_id: str) -> RunResult:
        data, nonce = code.encode(), os.urandom(NONCE)
        self._channel.settimeout(_SEND_S)
        if self._has_written():
            self._give_up(_FORGED)
            return self._lost(cell_id)
        try:
            self._channel.sendall(nonce + len(data).to_bytes(LENGTH, "big") + data)
        except BrokenPipeError:
            # It ended just now, and its zygote is about to say how.
            self._mourn(self._await_end())
            return self._lost(cell_id)
        course = self._follow(nonce, began + timeout_s)
        self._streams.drain()
        wall = time.monotonic() - began
        outcome = self._outcome(course)
        spent, self._cpu_s = course.cpu_s - self._cpu_s, course.cpu_s
        final = course.final
        if final is not None:
            self._mourn(final, outcome, course.reason)
        return RunResult(
            id=cell_id,
            outcome=outcome,
            stdout=self._streams.stdout.text(),
            stderr=self._streams.stderr.text(),
            value=course.text if course.kind == "v" and outcome == "ok" else None,
            exit_code=final.exit_code if final is not None else None,
            stdout_truncated=self._streams.stdout.truncated,
            stderr_truncated=self._streams.stderr.truncated,
            cpu_s=max(0.0, spent),
            wall_s=wall,
            isolation=self._isolation,
        )

    def _has_written(self) -> bool:
        """Whether there is something on the channel, where nothing may be now."""
        return readable(self._channel, 0) and bool(self._channel.recv(1, socket.MSG_PEEK))

    def _outcome(self, course: _Course) -> Outcome:
        if course.limit is not None:
            return course.limit
        if course.final is not None:
            if course.final.exit_code == -9 and self._cgroup.kills() > self._kills:
                return "memory"
            return "ok" if course.final.exit_code == 0 else "error"
        return "memory" if course.kind == "m" else "ok" if course.kind in ("o", "v") else "error"

    def _follow(self, nonce: bytes, deadline: float) -> _Course:
        """See a cell to its end: it has answered and its process waits for the next, or its process has ended.

        Raises:
            Lost: the zygote is gone.
        """
        course = self._wait(nonce, deadline)
        if course.kind:
            self._await_rest(course, deadline)
        if course.final is None and (course.reason or not course.kind):
            self._jail.tell(self._weight, "kill", self._key)
            course.final = self._await_end()
        if course.final is not None:
            course.cpu_s = course.final.cpu_s
        return course

    def _wait(self, nonce: bytes, deadline: float) -> _Course:
        """Wait for the cell's answer or the process's end, whichever is first.

        Returns:
            What came; neither of them: the cell does not stop, or its code wrote what is no answer, and it is
            to be killed.

        Raises:
            Lost: the zygote is gone.
        """
        control = self._jail.control(self._weight)
        poll = select.poll()
        for descriptor in (control, self._channel):
            poll.register(descriptor, select.POLLIN)
        self._streams.register(poll)
        limit: Outcome | None = None
        received = b""
        while True:
            left = deadline - time.monotonic()
            if self._streams.flooded:
                return _Course(limit="output_limit")
            if left <= 0 and limit is not None:
                return _Course(limit=limit)
            if left <= 0:
                limit, left = "timeout", _GRACE_S
                deadline = time.monotonic() + left
                self._jail.tell(self._weight, "interrupt", self._key)
            for fd, _ in poll.poll(left * 1000):
                if fd == control.fileno():
                    if (report := self._jail.listen(self._weight, self._key)) is not None:
                        return _Course(limit=limit, final=ending(report, limit))
                elif fd != self._channel.fileno():
                    self._streams.read(fd, poll)
                else:
                    chunk = self._channel.recv(1 << 16)
                    received += chunk
                    if not chunk:
                        poll.unregister(fd)
                    elif _is_forged(received, nonce):
                        return _Course(limit=limit, reason=_FORGED)
                    elif (answer := _parse(received)) is not None:
                        return _Course(*answer, limit=limit)

    def _await_rest(self, course: _Course, deadline: float) -> None:
        """Wait until the process that has answered waits for the next cell, as its zygote sees it.

        Until then the cell goes on, whatever it wrote, and its limit holds.

        Raises:
            Lost: the zygote is gone.
        """
        deadline = max(deadline, time.monotonic() + _GRACE_S)
        while True:
            self._jail.tell(self._weight, "cpu", self._key)
            report = None
            while report is None:
                report = self._jail.listen(self._weight, self._key)
            course.cpu_s = float(report["cpu_s"])
            if "status" in report:
                # It ended just now; the next look at it will find that.
                self._jail.ended[self._key] = report
                return
            if report["waits"]:
                course.reason = _FORGED if self._has_written() else ""
                return
            if time.monotonic() > deadline:
                course.kind, course.limit = "", course.limit or "timeout"
                return
            time.sleep(_ASK_AGAIN_S)

    def _await_end(self) -> Ending:
        """Wait until the process, which was killed or is dying, has ended.

        Raises:
            Lost: it cannot be known.
        """
        deadline = time.monotonic() + _DYING_S
        end = wait_for_end(self._jail, self._weight, self._key, self._streams, deadline)
        if end.trouble:
            raise Lost(end.trouble)
        return end

    def _mourn(self, final: Ending, outcome: Outcome | None = None, reason: str = "") -> None:
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
            self._give_up("the session was closed")


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
