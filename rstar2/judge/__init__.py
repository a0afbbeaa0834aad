"""The judge: a service that runs programs nobody trusts, each in a sandbox, and answers each exactly once.

It is a job queue with a sandbox. The way of one program, and the file for each step:

    client       client/client.py       a program becomes a `RunRequest` (schema.py)
       │         client/connection.py   it travels on a WebSocket with all others of its event loop
    HTTP process server/websocket.py    the WebSocket; server/runs.py, codejudge.py, sandboxfusion.py: plain HTTP
       │         server/dispatcher.py   it is a `PendingRun`, and goes into the queue
    Redis        queue/tasks.py         it is a `Task` in a stream; queue/scripts.py changes the queue atomically
       │
    worker       worker/consumer.py     the worker fetches it, at times several ahead (worker/local_queue.py)
       │         worker/main.py         and runs one at a time
    sandbox      sandbox/sandbox.py     it is sent into a jail, where a zygote (a warm interpreter) forks
       │         sandbox/inside/        a process that confines itself, becomes the `Program` and runs it
       │
    and back     sandbox/run.py         output is read, the time limit enforced, the end waited for
                 worker/consumer.py     the result is stored and published by one script (COMMIT)
                 server/dispatcher.py   the notice resolves the `PendingRun`
                 server/websocket.py    the result is sent
                 client/connection.py   the result is returned to the caller

A session is a process that keeps its variables from one cell to the next. It lives in one worker, and its cells
are tasks that only that worker reads: client/session.py, server/sessions.py, worker/sessions.py, sandbox/session.py.
Between cells it is stopped, and sessions whose cells compute take turns: sandbox/inside/turns.py.

service/ starts all of it (start.py), keeps it running (supervisor.py) and finds it again (state.py).
Packages import downwards only: service; client, server and worker, which do not know each other; sandbox; queue;
schema. pyproject.toml holds the rule.
"""

from __future__ import annotations

TYPE_CHECKING = False
"""True to type checkers, as in `rstar2`."""

if TYPE_CHECKING:
    from typing import Any

    from rstar2.judge.client import JudgeClient, SyncJudgeClient
    from rstar2.judge.schema import RunRequest, RunResult

__all__ = ["JudgeClient", "RunRequest", "RunResult", "SyncJudgeClient"]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """The names of the judge in the public API of `rstar2`, when they are first used."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        import rstar2

        return getattr(rstar2, name)
