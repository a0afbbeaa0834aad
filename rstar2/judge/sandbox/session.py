"""A session seen from outside: one process that keeps its state from cell to cell."""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable
from typing import Any

from rstar2.judge.sandbox.attend import Ending, ending, wait_for_end
from rstar2.judge.sandbox.cgroups import Cgroup
from rstar2.judge.sandbox.enclosure import Enclosure, Lost
from rstar2.judge.sandbox.inside.cells import HEADER
from rstar2.judge.sandbox.streams import Streams
from rstar2.judge.sandbox.weights import Weight
from rstar2.judge.schema import MAX_OUTPUT_BYTES, Isolation, Outcome, RunResult

_GRACE_S = 0.08
"""How long a cell may take to end after it was interrupted, before its whole session is killed."""
_SEND_S = 5.0
_DYING_S = 5.0


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
        while select.select([control], [], [], 0)[0]:
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
        data = code.encode()
        self._channel.settimeout(_SEND_S)
        try:
            self._channel.sendall(b"c" + len(data).to_bytes(HEADER - 1, "big") + data)
        except BrokenPipeError:
            # It ended just now, and its zygote is about to say how.
            self._mourn(self._await_end())
            return self._lost(cell_id)
        deadline = began + timeout_s
        message, interrupted, final = self._wait(deadline)
        if message is None and final is None:
            self._jail.tell(self._weight, "kill", self._key)
            final = self._await_end()
        self._streams.drain()
        wall = time.monotonic() - began
        kind, text = message or ("", "")
        outcome = self._outcome(kind, final, limited=interrupted)
        cpu_s = self._cpu_of_cell(final)
        if final is not None:
            self._mourn(final, outcome)
        return RunResult(
            id=cell_id,
            outcome=outcome,
            stdout=self._streams.stdout.text(),
            stderr=self._streams.stderr.text(),
            value=text if kind == "v" and outcome == "ok" else None,
            exit_code=final.exit_code if final is not None else None,
            stdout_truncated=self._streams.stdout.truncated,
            stderr_truncated=self._streams.stderr.truncated,
            cpu_s=cpu_s,
            wall_s=wall,
            isolation=self._isolation,
        )

    def _outcome(self, kind: str, final: Ending | None, limited: Outcome | None) -> Outcome:
        if limited is not None:
            return limited
        if final is not None:
            if final.exit_code == -9 and self._cgroup.kills() > self._kills:
                return "memory"
            return "ok" if final.exit_code == 0 else "error"
        return "memory" if kind == "m" else "ok" if kind in ("o", "v") else "error"

    def _wait(self, deadline: float) -> tuple[tuple[str, str] | None, Outcome | None, Ending | None]:
        """Wait for the cell's word or the process's end, whichever is first.

        Returns:
            (kind and text of the word or None, the limit that was hit or None, the end or None). All but the
            limit None: the cell does not stop and is to be killed.

        Raises:
            Lost: the zygote is gone, or what came on the channel was no word of ours.
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
                return None, "output_limit", None
            if left <= 0 and limit is not None:
                return None, limit, None
            if left <= 0:
                limit, left = "timeout", _GRACE_S
                deadline = time.monotonic() + left
                self._jail.tell(self._weight, "interrupt", self._key)
            for fd, _ in poll.poll(left * 1000):
                if fd == control.fileno():
                    if (report := self._jail.listen(self._weight, self._key)) is not None:
                        return None, limit, ending(report, limit)
                elif fd != self._channel.fileno():
                    self._streams.read(fd, poll)
                else:
                    chunk = self._channel.recv(1 << 16)
                    received += chunk
                    if not chunk:
                        poll.unregister(fd)
                    elif (word := _parse(received)) is not None:
                        return word, limit, None

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

    def _cpu_of_cell(self, final: Ending | None) -> float:
        """Processor seconds since the last cell, as the kernel counted them."""
        if final is None:
            self._jail.tell(self._weight, "cpu", self._key)
            report = None
            while report is None:
                report = self._jail.listen(self._weight, self._key)
            if "status" in report:
                # It ended just now; the next look at it will find that.
                self._jail.ended[self._key] = report
            total = float(report["cpu_s"])
        else:
            total = final.cpu_s
        spent, self._cpu_s = total - self._cpu_s, total
        return max(0.0, spent)

    def _mourn(self, final: Ending, outcome: Outcome | None = None) -> None:
        how = f"exit code {final.exit_code}" if final.exit_code >= 0 else f"signal {-final.exit_code}"
        why = f" ({outcome})" if outcome not in (None, "ok", "error") else ""
        self.end(f"the session ended with {how}{why}")

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


def _parse(received: bytes) -> tuple[str, str] | None:
    """The kind and text of a complete word; None while it is incomplete.

    Raises:
        Lost: it is longer than any word of ours: the cell's code wrote on the channel.
    """
    if len(received) < HEADER:
        return None
    length = int.from_bytes(received[1:HEADER], "big")
    if length > 16 * MAX_OUTPUT_BYTES:
        raise Lost("a cell wrote on the session's channel")
    if len(received) < HEADER + length:
        return None
    text = received[HEADER : HEADER + min(length, MAX_OUTPUT_BYTES)].decode(errors="replace")
    return received[:1].decode(errors="replace"), text
