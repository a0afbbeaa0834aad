"""The main function of a worker process: fetches programs from the queue, runs one at a time, and stores the results.

The main thread runs programs. Meanwhile, a second thread exchanges data with Redis (see `consumer`). An unexpected
exception in one of the two threads ends the process at once.
"""

from __future__ import annotations

import logging
import signal
import threading
import time
from pathlib import Path
from types import FrameType

import redis
from pydantic import ValidationError

from rstar2.judge.fail_fast import fail_fast
from rstar2.judge.queue import tasks as queue
from rstar2.judge.queue.redis_connection import sync_client
from rstar2.judge.queue.tasks import Task
from rstar2.judge.sandbox.sandbox import Sandbox
from rstar2.judge.schema import RunRequest, RunResult
from rstar2.judge.worker.consumer import Consumer
from rstar2.judge.worker.local_queue import LocalQueue
from rstar2.judge.worker.sessions import WorkerSessions
from rstar2.judge.worker.settings import WorkerSettings
from rstar2.processes import begin_module

IDLE_S = 1.0
PROFILE_EVERY = 256
"""After this many programs, a zygote that was not profiled yet is profiled even if more programs are waiting."""
STOP_S = 10.0
"""When the worker stops, it has this many seconds to store its last results."""
log = logging.getLogger(__name__)


def run_task(sandbox: Sandbox, task: Task) -> RunResult:
    """Run one program and return its result.

    The outcome is `lost` if the program cannot be read, or if too many workers died while they had the program.
    """
    queued_s = max(0.0, time.time() - task.at)
    if task.tries >= queue.MAX_TRIES:
        reason = f"{task.tries} workers died while they had this program"
        return RunResult(id=task.id, outcome="lost", stderr=reason, queue_s=queued_s)
    try:
        request = RunRequest.model_validate_json(task.body, extra="ignore")
    except ValidationError as error:
        log.error("task %r is not a program: %s", task.id, error)
        return RunResult(id=task.id, outcome="lost", stderr=queue.UNREADABLE, queue_s=queued_s)
    result = sandbox.run(request, task.id)
    result.queue_s = queued_s
    return result


def work(name: str, client: redis.Redis, sandbox: Sandbox, local: LocalQueue, preload: bool) -> None:
    """Run tasks until `local.stop` is called.

    Args:
        name: the worker's name.
        client: a redis-py client for the queue.
        sandbox: the worker's sandbox, which this function starts and closes.
        local: the queue through which this thread and the consumer's thread exchange tasks and results.
        preload: whether to load libraries while the worker is idle; see `WorkerSettings.preload`.

    Raises:
        Failure: the sandbox cannot be built.
        UserError: a judge of the queue requires a stronger isolation tier or another protocol version.
    """
    log.info("worker %s starts", name)
    sandbox.start()
    exceptions = sandbox.exceptions()
    log.info("isolation %s; not enforced: %s", sandbox.isolation, " ".join(exceptions) or "nothing")
    consumer = Consumer(
        name, client, local, {"isolation": sandbox.isolation, "exceptions": exceptions}, sandbox.abort
    )
    # A daemon thread ends with the main thread, even if that raises an exception.
    thread = threading.Thread(target=consumer.run, name="consumer", daemon=True)
    thread.start()
    sessions = WorkerSessions(sandbox, local)
    turn = 0
    while not local.stopping:
        task = consumer.next_task(IDLE_S)
        # This work comes before the next program, not after the last one, so that no result waits for it.
        sessions.end_overdue(local.session_activity)
        turn += 1
        if not local.stopping:
            if preload and task is None:
                # Only an idle worker loads libraries: one that is refused or stopped soon would load them in vain.
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
    thread.join(STOP_S)
    sandbox.close()
    if consumer.rejected is not None:
        raise consumer.rejected
    log.info("worker %s stops after %d programs and cells", name, consumer.done)


def main() -> None:
    settings = begin_module(WorkerSettings)
    logging.getLogger().setLevel(logging.INFO)
    local = LocalQueue()

    def on_signal(_signal: int, _frame: FrameType | None) -> None:
        # `stop` needs a lock that the interrupted thread may hold, so it runs in another thread.
        threading.Thread(target=local.stop).start()

    signal.signal(signal.SIGTERM, on_signal)
    # A shell may start this process with SIGINT ignored. Sessions would inherit that, and could not be interrupted.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    tier = settings.isolation
    with fail_fast():
        sandbox = Sandbox(Path(settings.folder), tier, minimum=tier or "landlock")
        work(settings.name, sync_client(settings.redis_url), sandbox, local, settings.preload)


if __name__ == "__main__":
    main()
