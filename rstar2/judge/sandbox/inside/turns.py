"""Pauses a session (SIGSTOP) while none of its cells runs. If the cells of several sessions compute, pauses all of
these sessions except one.

Therefore all sessions of a zygote together use no more CPU time than one program. A cell that sleeps delays no other
cell. The oldest cell gets every second turn. If all cells had equal shares of the CPU, cells that began at the same
time would all end late, possibly after their clients have given up.

Sessions are paused with SIGSTOP, because that works in every tier and for every user. Only root can use the freezer of
control groups. A program can neither catch SIGSTOP nor undo it: all processes of the session are paused, so none of
them can send SIGCONT, and the seccomp filter refuses timers that send SIGCONT. A program cannot keep running by
starting new processes faster than the zygote pauses them: processes whose parents have ended are not reaped and still
count towards the process limit, so the program soon reaches this limit.
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
"""Length of a session's turn in seconds."""
_STOP_ATTEMPTS, _STOP_INTERVAL_S = 8, 0.0002


class ProcessTree:
    """All processes of a program or session, which are paused and resumed together.

    Args:
        list_pids: a function that returns the ids of all processes of the program or session.
    """

    def __init__(self, list_pids: Callable[[], list[int]]) -> None:
        self._list_pids = list_pids
        self.is_stopping = False
        """Whether the last signal to the processes was SIGSTOP and not SIGCONT."""
        self.is_stopped = False
        """Whether `stop` has confirmed that all processes are paused."""
        self._waited_s = 0.0
        self._waits_since: float | None = None
        """Monotonic time at which the session began to wait for its turn, or None if the session does not wait."""

    def stop(self) -> bool:
        """Pause all processes.

        Returns whether all processes are paused. If some processes are not paused yet, call `stop` again.
        """
        self.is_stopping = True
        for _ in range(_STOP_ATTEMPTS):
            self._signal(_SIGSTOP)
            # Checked twice, because processes could start or continue each other during the first check.
            cpu_before = processes.cpu_of_stopped(self._list_pids())
            self.is_stopped = (
                cpu_before is not None and processes.cpu_of_stopped(self._list_pids()) == cpu_before
            )
            if self.is_stopped:
                break
            time.sleep(_STOP_INTERVAL_S)
        return self.is_stopped

    def resume(self) -> None:
        """Let all processes continue."""
        self.stop_waiting()
        if self.is_stopping:
            self.is_stopping = self.is_stopped = False
            self._signal(_SIGCONT)

    def _signal(self, number: int) -> None:
        for pid in self._list_pids():
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue

    def is_computing(self) -> bool:
        return processes.count_computing(self._list_pids()) > 0

    def begin_cell(self) -> None:
        self._waited_s, self._waits_since = 0.0, None

    def wait_for_turn(self) -> None:
        if self._waits_since is None:
            self._waits_since = time.monotonic()

    def stop_waiting(self) -> None:
        self._waited_s, self._waits_since = self.waited_s(), None

    def waited_s(self) -> float:
        """Returns how many seconds the session has waited for its turn since its cell began."""
        current_s = 0.0 if self._waits_since is None else time.monotonic() - self._waits_since
        return self._waited_s + current_s


class Turns:
    """Lets only one session at a time compute.

    A cell joins the queue for the CPU when the cell begins. If a check finds that the cell sleeps, the cell leaves the
    queue. If a later check finds that the cell computes, the cell joins the end of the queue again. The oldest cell in
    the queue gets every second turn.
    """

    def __init__(self) -> None:
        self._running: list[ProcessTree] = []
        """Sessions whose cells are running. The oldest cell comes first."""
        self._queue: deque[ProcessTree] = deque()
        """Sessions whose cells compute. The first session has its turn, and the other sessions are paused."""
        self._turn_ends_at = 0.0
        """Monotonic time at which the current turn ends."""

    def begin(self, session: ProcessTree) -> None:
        """Begin a session's cell. The cell computes at once, unless another session's cell is computing."""
        session.begin_cell()
        self._running.append(session)
        if self._queue and not self._queue[0].is_computing():
            self._queue.popleft()
        self._queue.append(session)
        self._give_turn()

    def end(self, session: ProcessTree) -> None:
        """Remove a session if its cell has ended or if the session itself has ended."""
        if session in self._running:
            self._running.remove(session)
        if session in self._queue:
            self._queue.remove(session)
            self._give_turn()
        session.stop_waiting()

    def seconds_left(self) -> float | None:
        """Returns the seconds until the current turn ends, or None if fewer than two cells are running."""
        return None if len(self._running) < 2 else max(0.0, self._turn_ends_at - time.monotonic())

    def next_turn(self) -> None:
        """End the current turn, and begin the turn of the next session."""
        began = time.monotonic()
        computing = [
            session for session in self._running if session not in self._queue and session.is_computing()
        ]
        last = self._queue.popleft() if self._queue else None
        if last is not None and last.is_computing():
            computing.append(last)
        self._queue.extend(computing)
        oldest = next((session for session in self._running if session in self._queue), None)
        if oldest is not None and oldest is not last:
            self._queue.remove(oldest)
            self._queue.appendleft(oldest)
        self._give_turn()
        # A turn is longer if checking many sessions took long. A random part keeps programs from predicting its end.
        took = time.monotonic() - began
        self._turn_ends_at = time.monotonic() + max(TURN_S, 4 * took) + os.urandom(1)[0] / 10000

    def _give_turn(self) -> None:
        for place, session in enumerate(self._queue):
            if place == 0:
                session.resume()
            else:
                session.wait_for_turn()
                if not session.is_stopped:
                    session.stop()
