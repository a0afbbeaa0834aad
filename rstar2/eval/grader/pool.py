"""Grading in processes that can be killed, from any thread.

Most gradings compare two plain integers, the same text twice or a few short fractions; those are decided in this
process, in well under a millisecond, by the same rules. The rest go to a worker whose CPU time is limited, so that no
model output can hang or exhaust the caller.
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
"""A worker that has not answered after this many CPU deadlines of wall time is stuck, not merely waiting."""
LEAST_WALL_S = 300.0
"""Its own start is in that time, which on a busy machine takes long."""
_END_S = 60.0
"""How long a process may take to end that was killed, or has closed its output."""
_PIPE_BYTES = 1 << 16
_NEEDED = ("mpmath", "sympy")
"""What workers import once a grading needs it."""
log = logging.getLogger(__name__)


def _graded_quickly(gold: str | None, pred: str | None) -> Verdict | None:
    """`grade_quickly`; an error in the grader's code costs one verdict, as in a worker, and not the caller's work."""
    try:
        return grade_quickly(gold, pred)
    except Exception:
        log.exception("grading failed: gold answer %.200r, output %.200r", gold, pred)
        return Verdict("unparsed", None, INTERNAL_ERROR)


class _Stopped(Exception):
    """The worker ended or was ended before it answered."""

    def __init__(self, deadline: bool, stuck: bool = False) -> None:
        super().__init__()
        self.deadline = deadline
        """Whether the grading used up its CPU time."""
        self.stuck = stuck
        """Whether the worker did not answer within the limit of wall time."""


class _Worker:
    """One child process and its two pipes; used by one thread at a time."""

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
            process_group=0,  # Ctrl-C is the caller's; the worker ends with its standard input
        )
        assert self._process.stdin is not None
        # A worker that has stopped reading fills the pipe; writing must not wait for it.
        os.set_blocking(self._process.stdin.fileno(), False)
        self.pid = self._process.pid

    def grade(self, gold: str | None, pred: str | None) -> Verdict:
        """Send one pair and wait for its verdict. Raises _Stopped if the process ends first."""
        request = json.dumps([gold, pred]).encode() + b"\n"
        with self._busy:
            verdict, extracted, rule, certificate = json.loads(self._exchange(request))
        return Verdict(verdict, extracted, rule, certificate)

    def stop(self) -> None:
        """Kill the process; a thread that waits for its answer is told that it stopped."""
        self._process.kill()
        with self._busy:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_END_S)
            for pipe in (self._process.stdin, self._process.stdout):
                assert pipe is not None
                pipe.close()

    def _exchange(self, request: bytes) -> bytes:
        """Write a request and read its answer, both under one limit of wall time."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        if self._process.stdin.closed:
            raise _Stopped(deadline=False)
        sink, source = self._process.stdin.fileno(), self._process.stdout.fileno()
        deadline = time.monotonic() + self._wall_s
        poll = select.poll()
        poll.register(source, select.POLLIN)
        poll.register(sink, select.POLLOUT)
        rest, received = memoryview(request), b""
        while not received.endswith(b"\n"):
            left_ms = (deadline - time.monotonic()) * 1000
            ready = poll.poll(left_ms) if left_ms > 0 else []
            if not ready:
                raise _Stopped(deadline=False, stuck=True)
            try:
                for descriptor, _ in ready:
                    if descriptor == source:
                        received += self._read(source)
                    elif rest:
                        rest = rest[os.write(sink, rest[:_PIPE_BYTES]) :]
                        if not rest:
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
    """Grades from any thread, with `workers` processes and a hard deadline for each grading.

    Args:
        workers: processes, and so gradings that run at once.
        timeout_s: seconds of the worker's own CPU time one grading may use. A far larger bound on wall time
            stands behind it, so the verdict does not depend on how busy the machine is.

    Use as a context manager; the processes end with it. A grading that passes its deadline comes back as
    `timeout`; one whose worker was killed from outside is graded again on a fresh worker. `outcomes.missed` tells
    such verdicts from wrong answers. ValueError for sizes that mean nothing; UserError if the environment holds a
    secret of the run that is none; ModuleNotFoundError if a package that workers need is not installed.
    """

    def __init__(self, workers: int = 1, timeout_s: float = 1.5) -> None:
        if workers < 1 or timeout_s <= 0:
            raise ValueError(
                f"a grader pool needs workers >= 1 and timeout_s > 0, not {workers} and {timeout_s}"
            )
        for module in _NEEDED:
            # Otherwise each worker would end at its first formula, and a missing package become a verdict.
            if find_spec(module) is None:
                raise ModuleNotFoundError(f"No module named {module!r}", name=module)
        secret()  # made here if there is none, so that all workers have this process's
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
        """End the processes. Gradings still under way in other threads come back as `unparsed`."""
        with self._lock:
            self._closed = True
            workers, self._all = list(self._all), set()
        for worker in workers:
            worker.stop()
        self._threads.shutdown()

    def grade(self, gold: AnswerValue, pred: AnswerValue) -> Verdict:
        """Grade one answer; if the quick rules do not decide, waits for a worker, which has a deadline itself."""
        gold, pred = as_text(gold), as_text(pred)
        return _graded_quickly(gold, pred) or self._grade_in_worker(gold, pred)

    def grade_many(self, pairs: Iterable[tuple[AnswerValue, AnswerValue]]) -> list[Verdict]:
        """Grade (gold, pred) pairs on all workers; the verdicts come in the order of the pairs."""
        return list(self._threads.map(lambda pair: self.grade(*pair), list(pairs)))

    async def agrade(self, gold: AnswerValue, pred: AnswerValue) -> Verdict:
        """Grade one answer without blocking the event loop."""
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
