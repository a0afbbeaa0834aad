"""A pool of processes that grade answers and can be killed. The pool may be used from any thread.

Most answers are simple to grade: two integers, two equal texts, or a few short fractions. The caller's process grades
simple answers in well under a millisecond, by the same rules as a worker. All other answers are graded by a worker with
limited CPU time, so that no model output can block the caller or use up its memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import queue
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

import rstar2
from rstar2.eval.grader.grading import (
    INTERNAL_ERROR,
    POOL_CLOSED,
    WORKER_ENDED,
    WORKER_STUCK,
    AnswerValue,
    Verdict,
    as_text,
    grade_quickly,
)
from rstar2.eval.grader.values.secret import secret

WALL_FACTOR = 30.0
"""A worker counts as stuck if its answer takes more wall time than the CPU deadline times this factor."""
LEAST_WALL_S = 300.0
"""Minimum wall-time limit for an answer, in seconds. The wall time includes starting the worker, which is slow on a
busy machine."""
_END_S = 60.0
"""Maximum number of seconds to wait for the exit of a process that was killed or has closed its output."""
_PIPE_BYTES = 1 << 16
_WORKER_MODULES = ("mpmath", "sympy")
"""Modules that a worker imports when it needs them to grade an answer."""
log = logging.getLogger(__name__)


def _graded_quickly(gold: str | None, pred: str | None) -> Verdict | None:
    """Returns the verdict of `grade_quickly`.

    If the grader's code raises an error, the error is logged and becomes a verdict, as in a worker.
    """
    try:
        return grade_quickly(gold, pred)
    except Exception:
        log.exception("grading failed: gold answer %.200r, output %.200r", gold, pred)
        return Verdict("unparsed", None, INTERNAL_ERROR)


class _Stopped(Exception):
    """The worker exited, or the pool killed it, before it answered."""

    def __init__(self, deadline: bool, stuck: bool = False) -> None:
        super().__init__()
        self.deadline = deadline
        """Whether the grading used up its CPU time."""
        self.stuck = stuck
        """Whether the worker did not answer within the limit of wall time."""


class _Worker:
    """A child process and its two pipes. Only one thread at a time uses a worker."""

    def __init__(self, timeout_s: float) -> None:
        self._wall_s = max(WALL_FACTOR * timeout_s, LEAST_WALL_S)
        self._busy = threading.Lock()
        env = dict(os.environ)
        source = str(Path(rstar2.__file__).parents[1])
        env["PYTHONPATH"] = os.pathsep.join(filter(None, [source, env.get("PYTHONPATH", "")]))
        self._process = subprocess.Popen(
            [sys.executable, "-m", "rstar2.eval.grader.worker", str(timeout_s)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            env=env,
            process_group=0,  # so Ctrl-C reaches only the caller; the worker ends when its standard input closes
        )
        assert self._process.stdin is not None
        # If a worker has stopped reading, the pipe is full, and writing must not block.
        os.set_blocking(self._process.stdin.fileno(), False)
        self.pid = self._process.pid

    def grade(self, gold: str | None, pred: str | None) -> Verdict:
        """Sends a pair of answers and waits for the verdict. Raises _Stopped if the process ends first or is stuck."""
        request = json.dumps([gold, pred]).encode() + b"\n"
        with self._busy:
            verdict, extracted, rule, certificate = json.loads(self._exchange(request))
        return Verdict(verdict, extracted, rule, certificate)

    def stop(self) -> None:
        """Kills the process. A thread that waits for an answer of the process gets the exception _Stopped."""
        self._process.kill()
        with self._busy:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_END_S)
            for pipe in (self._process.stdin, self._process.stdout):
                assert pipe is not None
                pipe.close()

    def _exchange(self, request: bytes) -> bytes:
        """Writes a request and reads the answer. The limit of wall time applies to writing and reading together."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        if self._process.stdin.closed:
            raise _Stopped(deadline=False)
        sink, source = self._process.stdin.fileno(), self._process.stdout.fileno()
        deadline = time.monotonic() + self._wall_s
        poll = select.poll()
        poll.register(source, select.POLLIN)
        poll.register(sink, select.POLLOUT)
        unsent, received = memoryview(request), b""
        while not received.endswith(b"\n"):
            left_ms = (deadline - time.monotonic()) * 1000
            ready = poll.poll(left_ms) if left_ms > 0 else []
            if not ready:
                raise _Stopped(deadline=False, stuck=True)
            try:
                for descriptor, _ in ready:
                    if descriptor == source:
                        received += self._read(source)
                    elif unsent:
                        unsent = unsent[os.write(sink, unsent[:_PIPE_BYTES]) :]
                        if not unsent:
                            poll.unregister(sink)
            except BrokenPipeError:
                raise _Stopped(deadline=self._ended_by_deadline()) from None
        return received

    def _read(self, source: int) -> bytes:
        part = os.read(source, _PIPE_BYTES)
        if not part:
            raise _Stopped(deadline=self._ended_by_deadline())
        return part

    def _ended_by_deadline(self) -> bool:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_S)
        return self._process.returncode == -signal.SIGPROF


class GraderPool(contextlib.AbstractContextManager["GraderPool"]):
    """Grades answers in worker processes, with a hard deadline for each grading. The pool may be used from any thread.

    Use the pool as a context manager. The pool's processes end at the end of the `with` block. A grading that passes
    its deadline gets the verdict `timeout`. If a worker is killed from outside, its answer is graded again by a new
    worker. `outcomes.missed` distinguishes wrong answers from answers that could not be graded.

    Args:
        workers: The number of processes, which is the number of answers that are graded concurrently.
        timeout_s: The CPU time, in seconds, that a worker may use to grade one answer. The CPU time is measured in the
            worker, so the verdict does not depend on how busy the machine is. A far larger limit of wall time catches
            workers that are stuck.

    Raises:
        ValueError: If `workers` or `timeout_s` is too small.
        UserError: If the environment variable with the secret of the run holds no valid secret.
        ModuleNotFoundError: If a package that workers need is not installed.
    """

    def __init__(self, workers: int = 1, timeout_s: float = 1.5) -> None:
        if workers < 1 or timeout_s <= 0:
            raise ValueError(
                f"a grader pool needs workers >= 1 and timeout_s > 0, not {workers} and {timeout_s}"
            )
        for module in _WORKER_MODULES:
            # Otherwise each worker would fail at its first formula, and a missing package would become a verdict.
            if find_spec(module) is None:
                raise ModuleNotFoundError(f"No module named {module!r}", name=module)
        secret()  # created here if there is none, so that all workers share it
        self._timeout_s = timeout_s
        self._idle: queue.SimpleQueue[_Worker] = queue.SimpleQueue()
        self._all: set[_Worker] = set()
        self._lock = threading.Lock()
        self._closed = False
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="grader")
        for _ in range(workers):
            self._idle.put(self._start())

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the processes. Threads that still wait for a verdict get the verdict `unparsed`."""
        with self._lock:
            self._closed = True
            workers, self._all = list(self._all), set()
        for worker in workers:
            worker.stop()
        self._threads.shutdown()

    def grade(self, gold: AnswerValue, pred: AnswerValue) -> Verdict:
        """Grades one answer, as `grading.grade` does. If `grade_quickly` returns no verdict, the call waits for a
        worker."""
        gold, pred = as_text(gold), as_text(pred)
        return _graded_quickly(gold, pred) or self._grade_in_worker(gold, pred)

    def grade_many(self, pairs: Iterable[tuple[AnswerValue, AnswerValue]]) -> list[Verdict]:
        """Grades pairs of a gold answer and an output (gold, pred) on all workers. Returns the verdicts in the order of
        the pairs."""
        return list(self._threads.map(lambda pair: self.grade(*pair), list(pairs)))

    async def agrade(self, gold: AnswerValue, pred: AnswerValue) -> Verdict:
        """Grades one answer without blocking the event loop."""
        gold, pred = as_text(gold), as_text(pred)
        loop = asyncio.get_running_loop()
        quick = _graded_quickly(gold, pred)
        if quick is not None:
            return quick
        return await loop.run_in_executor(self._threads, self._grade_in_worker, gold, pred)

    def _grade_in_worker(self, gold: str | None, pred: str | None) -> Verdict:
        worker = self._idle.get()
        try:
            for _ in range(2):
                if self._closed:
                    return Verdict("unparsed", None, POOL_CLOSED)
                try:
                    return worker.grade(gold, pred)
                except _Stopped as stopped:
                    worker = self._replace(worker)
                    if stopped.deadline:
                        return Verdict("timeout", None, "deadline")
                    if stopped.stuck:
                        return Verdict("timeout", None, WORKER_STUCK)
            return Verdict("unparsed", None, WORKER_ENDED)
        finally:
            self._idle.put(worker)

    def _start(self) -> _Worker:
        worker = _Worker(self._timeout_s)
        with self._lock:
            self._all.add(worker)
        return worker

    def _replace(self, worker: _Worker) -> _Worker:
        worker.stop()
        with self._lock:
            self._all.discard(worker)
            if self._closed:
                return worker
        return self._start()
