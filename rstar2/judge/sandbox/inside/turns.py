"""Stops sessions: each between its cells, and all but one of those whose cells compute at the same time.

Together the sessions of a zygote thus take no more of the processors than one program does. A cell that sleeps delays
no other cell. Every second turn belongs to the cell that began first. If all cells had the same share, those that began
together would all end late, at the same time, and none before its client gives up.

Sessions are stopped with SIGSTOP, because every tier and every user can do that; only root can use the freezer of
control groups. A program can neither catch the signal nor undo it: what could continue a stopped process is stopped too
(its other processes), or refused by the seccomp filter (a timer that sends SIGCONT). Nor can it run ahead of the signal
with ever new processes: nobody reaps those whose parents have ended, and they count towards its limit of processes.
"""

from __future__ import annotations

import os
import time
from collections import deque

from rstar2.judge.sandbox.inside import processes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_SIGCONT, _SIGSTOP = 18, 19
TURN_S = 0.05
"""How long a session computes before another one has its turn."""
_LOOKS, _LOOK_INTERVAL_S = 8, 0.0002


class ProcessTree:
    """All processes of a program or session, which are stopped and continued together.

    Args:
        find: lists them.
    """

    def __init__(self, find: Callable[[], list[int]]) -> None:
        self._find = find
        self.is_told_to_stop = False
        self.is_stopped = False
        """Whether none of them was running any more when they were last looked at."""
        self._waited_s = 0.0
        self._waits_since: float | None = None
        """Monotonic seconds since which the session waits for its turn; None: it does not."""

    def stop(self) -> bool:
        """Stop all processes. Returns whether none of them ran any more; if not, call it again."""
        self.is_told_to_stop = True
        for _ in range(_LOOKS):
            self._signal(_SIGSTOP)
            # Two equal looks, because processes could start or continue one another while they are looked at.
            before = processes.cpu_of_stopped(self._find())
            self.is_stopped = before is not None and processes.cpu_of_stopped(self._find()) == before
            if self.is_stopped:
                break
            time.sleep(_LOOK_INTERVAL_S)
        return self.is_stopped

    def resume(self) -> None:
        """Continue all processes."""
        self.stop_waiting()
        if self.is_told_to_stop:
            self.is_told_to_stop = self.is_stopped = False
            self._signal(_SIGCONT)

    def _signal(self, number: int) -> None:
        for pid in self._find():
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue

    def is_computing(self) -> bool:
        return processes.count_computing(self._find()) > 0

    def begin_cell(self) -> None:
        self._waited_s, self._waits_since = 0.0, None

    def wait_for_turn(self) -> None:
        if self._waits_since is None:
            self._waits_since = time.monotonic()

    def stop_waiting(self) -> None:
        self._waited_s, self._waits_since = self.waited_s(), None

    def waited_s(self) -> float:
        """Seconds for which the session has waited for its turn since its cell began."""
        waits_s = 0.0 if self._waits_since is None else time.monotonic() - self._waits_since
        return self._waited_s + waits_s


class Turns:
    """Lets one of the sessions compute whose cells are running.

    A cell takes its place in the line when it begins. It leaves the line when it is seen sleeping, and returns to the
    end of the line when it is seen computing again. Every second turn is that of the oldest cell in the line.
    """

    def __init__(self) -> None:
        self._running: list[ProcessTree] = []
        """The sessions whose cells are running. The oldest cell comes first."""
        self._line: deque[ProcessTree] = deque()
        """Those that compute. The first one has its turn, the others are stopped."""
        self._ends = 0.0
        """Monotonic seconds at which the turn ends."""

    def begin(self, session: ProcessTree) -> None:
        """Begin a session's cell: at once, unless another session's cell is computing."""
        session.begin_cell()
        self._running.append(session)
        if self._line and not self._line[0].is_computing():
            self._line.popleft()
        self._line.append(session)
        self._give_turn()

    def end(self, session: ProcessTree) -> None:
        """Note that a session's cell is over, or that the session has ended."""
        if session in self._running:
            self._running.remove(session)
        if session in self._line:
            self._line.remove(session)
            self._give_turn()
        session.stop_waiting()

    def seconds_left(self) -> float | None:
        """Seconds until the turn ends; None if there is only one cell."""
        return None if len(self._running) < 2 else max(0.0, self._ends - time.monotonic())

    def pass_on(self) -> None:
        """End the turn: the next session has its turn."""
        began = time.monotonic()
        computing = [
            session for session in self._running if session not in self._line and session.is_computing()
        ]
        last = self._line.popleft() if self._line else None
        if last is not None and last.is_computing():
            computing.append(last)
        self._line.extend(computing)
        oldest = next((session for session in self._running if session in self._line), None)
        if oldest is not None and oldest is not last:
            self._line.remove(oldest)
            self._line.appendleft(oldest)
        self._give_turn()
        # Looking at many sessions takes long itself. The random time is one that no program can prepare for.
        took = time.monotonic() - began
        self._ends = time.monotonic() + max(TURN_S, 4 * took) + os.urandom(1)[0] / 10000

    def _give_turn(self) -> None:
        for place, session in enumerate(self._line):
            if place == 0:
                session.resume()
            else:
                session.wait_for_turn()
                if not session.is_stopped:
                    session.stop()
