"""Grades pairs in processes whose CPU time per pair is limited, and measures that time and the memory."""

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
"""Seconds of CPU time for a pair, as the pool's workers have by default."""
_PAGE = resource.getpagesize()

End: TypeAlias = Literal["verdict", "deadline", "crash"]


@dataclass(frozen=True, slots=True)
class Graded:
    """What grading one pair came to."""

    gold: str
    answer: str
    end: End
    verdict: str = ""
    rule: str = ""
    """The rule that decided; the traceback of a crash."""
    cpu_ms: float = LIMIT_S * 1000
    memory_mb: float = 0.0
    """Resident memory of the process after the pair."""

    @property
    def correct(self) -> bool:
        return self.verdict == "correct"


def graded(pairs: Iterable[tuple[str, str]], processes: int = 2) -> Iterator[tuple[int, Graded]]:
    """The outcomes of (gold, answer) pairs and the pairs' numbers, in the order in which they are done.

    A process that a pair kills is started again; the pair counts as `deadline` if its CPU time was used up.
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
        """The number of the pair, its outcome, and whether the process lives."""
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
    """The loop of a process: a pair in, its outcome out, until the other end is closed."""
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    grade("\\frac{\\sqrt{3}}{3}", "1/sqrt(3)")  # loads what the first comparison needs
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
