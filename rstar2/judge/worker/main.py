"""One worker process: takes programs from the queue, runs them one at a time, stores their results.

The main thread runs programs; a second one speaks with Redis meanwhile (`consumer`).
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from pathlib import Path
from types import FrameType

import redis

from rstar2.errors import RStarError
from rstar2.judge.queue import tasks as queue
from rstar2.judge.queue.redis_connection import sync_client
from rstar2.judge.queue.tasks import Task
from rstar2.judge.sandbox.host.cpu_affinity import CpuAffinity
from rstar2.judge.sandbox.sandbox import Sandbox
from rstar2.judge.schema import RunRequest, RunResult
from rstar2.judge.worker.consumer import Consumer
from rstar2.judge.worker.local_queue import LocalQueue
from rstar2.judge.worker.sessions import WorkerSessions
from rstar2.judge.worker.settings import WorkerSettings
from rstar2.processes import begin_module

IDLE_S = 1.0
PROFILE_EVERY = 256
"""Programs after which a zygote that was not profiled yet is, even if more programs are waiting."""


def run_task(sandbox: Sandbox, task: Task) -> RunResult:
    """Run one program, whatever it does."""
    queued_s = max(0.0, time.time() - task.at)
    if task.tries >= queue.MAX_TRIES:
        reason = f"{task.tries} workers died while they held this program"
        return RunResult(id=task.id, outcome="lost", stderr=reason, queue_s=queued_s)
    request = RunRequest.model_validate_json(task.body)
    result = sandbox.run(request, task.id)
    result.queue_s = queued_s
    return result


def work(name: str, client: redis.Redis, sandbox: Sandbox, local: LocalQueue, preload: bool) -> None:
    """Work until `local` is told to stop; `preload` is explained at `WorkerSettings`.

    Raises:
        Failure: the sandbox cannot be built.
        UserError: its tier is below what a judge of the queue requires.
    """
    sandbox.start()
    sessions = WorkerSessions(sandbox, local)
    try:
        about = {"isolation": sandbox.isolation, "exceptions": sandbox.exceptions()}
        consumer = Consumer(name, client, local, about, sandbox.abort)
        thread = threading.Thread(target=consumer.run, name="consumer")
        thread.start()
        # Only now: the other thread is to stay free.
        sandbox.set_affinity(CpuAffinity())
        try:
            turn = 0
            while not local.stopping:
                task = consumer.next_task(IDLE_S)
                # Before the program and not after it: a result must not wait for any of this.
                sessions.end_overdue(local.session_activity)
                turn += 1
                if not local.stopping:
                    if preload and task is None:
                        # Not before: a worker that is refused or soon ended loads no libraries for nothing.
                        sandbox.start_zygotes()
                    if task is None or turn % PROFILE_EVERY == 0:
                        sandbox.profile_next_zygote()
                if task is not None and task.is_cell:
                    sessions.run_task(task)
                elif task is not None:
                    local.finish(task, run_task(sandbox, task))
                sessions.raise_errors()
                local.sessions = len(sessions.open)
            sessions.finish()
        finally:
            local.stop()
            thread.join(10)
        if consumer.rejected is not None:
            raise consumer.rejected
    finally:
        sandbox.close()


def main() -> None:
    settings = begin_module(WorkerSettings)
    local = LocalQueue()

    def on_signal(_signal: int, _frame: FrameType | None) -> None:
        # Not here: the thread this interrupts may hold the lock.
        threading.Thread(target=local.stop).start()

    signal.signal(signal.SIGTERM, on_signal)
    # A shell may have us start with SIGINT ignored, which sessions would inherit and not be interruptible.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    tier = settings.isolation
    sandbox = Sandbox(Path(settings.folder), tier, minimum=tier or "landlock")
    try:
        work(settings.name, sync_client(settings.redis_url), sandbox, local, settings.preload)
    except RStarError as error:
        print(f"{error.message}\n{error.hint}", file=sys.stderr)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
