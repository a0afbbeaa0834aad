"""Grades pairs in processes with a limit on the CPU time per pair, and measures CPU time and memory."""

from __future__ import annotations

import resource
import signal
import time
import traceback
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Literal, TypeAlias

from rstar2.eval.grader import grade

LIMIT_S = 1.5
"""Limit of the CPU time per pair in seconds, the default of the grader's pool."""
_PAGE = resource.getpagesize()

End: TypeAlias = Literal["verdict", "deadline", "crash"]


@dataclass(frozen=True, slots=True)
class Graded:
    """The outcome of grading one pair."""

    gold: str
    answer: str
    end: End
    verdict: str = ""
    rule: str = ""
    """The rule that decided, or the traceback of a crash."""
    cpu_ms: float = LIMIT_S * 1000
    memory_mb: float = 0.0
    """Resident memory of the process after the pair."""

    @property
    def correct(self) -> bool:
        return self.verdict == "correct"


def graded(pairs: Iterable[tuple[str, str]], processes: int = 2) -> Iterator[tuple[int, Graded]]:
    """Grade (gold, answer) pairs. Yields (number of the pair, outcome) in the order in which the gradings finish.

    If a pair kills its process, a new process is started. The outcome is then `deadline` if the pair used up its CPU
    time, else `crash`.
    """
    numbered = enumerate(pairs)
    workers = [_Worker() for _ in range(processes)]
    for worker in workers:
        worker.send(next(numbered, None))
    while busy := [worker for worker in workers if worker.job is not None]:
        ready = wait([worker.connection for worker in busy])
        for worker in busy:
            if worker.connection not in ready:
                continue
            number, outcome, alive = worker.receive()
            if not alive:
                workers.remove(worker)
                worker = _Worker()
                workers.append(worker)
            worker.send(next(numbered, None))
            yield number, outcome
    for worker in workers:
        worker.stop()


class _Worker:
    """A process that grades one pair at a time."""

    def __init__(self) -> None:
        spawn = get_context("spawn")
        self.connection, other = spawn.Pipe()
        self._process: BaseProcess = spawn.Process(target=_answer, args=(other,), daemon=True)
        self._process.start()
        other.close()
        self.job: tuple[int, tuple[str, str]] | None = None

    def send(self, job: tuple[int, tuple[str, str]] | None) -> None:
        self.job = job
        if job is not None:
            self.connection.send(job[1])

    def receive(self) -> tuple[int, Graded, bool]:
        """Return the number of the pair, its outcome, and whether the process is still alive."""
        assert self.job is not None
        number, (gold, answer) = self.job
        try:
            return number, Graded(gold, answer, *self.connection.recv()), True
        except EOFError:
            self._process.join()
            killed = self._process.exitcode == -signal.SIGPROF
            outcome = Graded(
                gold, answer, "deadline" if killed else "crash", "", f"exit {self._process.exitcode}"
            )
            return number, outcome, False

    def stop(self) -> None:
        self.connection.close()
        self._process.join()


def _answer(connection: Connection) -> None:
    """Receive pairs and send their outcomes until the other end of the connection is closed."""
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    grade("\\frac{\\sqrt{3}}{3}", "1/sqrt(3)")  # The first comparison loads modules.
    while True:
        try:
            gold, answer = connection.recv()
        except EOFError:
            return
        signal.setitimer(signal.ITIMER_PROF, LIMIT_S)
        started = time.process_time()
        end, verdict, rule = "verdict", "", ""
        try:
            result = grade(gold, answer)
            verdict, rule = result.verdict, result.rule
        except Exception:  # noqa: BLE001  any exception of the grader is a crash to be reported
            end, rule = "crash", traceback.format_exc()
        cpu_ms = (time.process_time() - started) * 1000
        signal.setitimer(signal.ITIMER_PROF, 0)
        connection.send((end, verdict, rule, cpu_ms, _resident_mb()))


def _resident_mb() -> float:
    with open("/proc/self/statm", encoding="ascii") as numbers:
        return int(numbers.read().split()[1]) * _PAGE / (1 << 20)
