"""The judge: a service that runs untrusted programs in sandboxes and returns exactly one result for each program.

The judge is a job queue with a sandbox. The diagram shows the steps of one program and the file that contains the code
of each step:

    client       client/client.py       takes the program as a `RunRequest` (schema.py)
       │         client/connection.py   sends the requests of one event loop over one WebSocket
    HTTP process server/websocket.py    serves the WebSocket; runs.py, codejudge.py and sandboxfusion.py serve HTTP
       │         server/dispatcher.py   turns the request into a `PendingRun` and puts it into the queue
    Redis        queue/tasks.py         stores the program as a `Task` in a stream; scripts.py has the Lua scripts
       │
    worker       worker/consumer.py     fetches tasks, sometimes several in advance (worker/local_queue.py)
       │         worker/main.py         runs one task at a time
    sandbox      sandbox/sandbox.py     sends the program into a jail, where a zygote (a warm interpreter) forks
       │         sandbox/inside/        confines the forked process, which becomes the `Program` and runs the code
       │
    and back     sandbox/run.py         reads the output, enforces the time limit and waits for the end
                 worker/consumer.py     stores and publishes the result with one script (COMMIT)
                 server/dispatcher.py   resolves the `PendingRun` when the notice arrives
                 server/websocket.py    sends the result
                 client/connection.py   returns the result to the caller

A session is a process that keeps its variables from one cell to the next. Each session belongs to one worker, and only
that worker reads the session's cells. The code of sessions is in client/session.py, server/sessions.py,
worker/sessions.py and sandbox/session.py. While no cell of a session runs, the session's processes are paused
(SIGSTOP). If cells of several sessions run at the same time, the sessions take turns on the CPU; see
sandbox/inside/turns.py.

service/start.py starts all processes, and service/supervisor.py restarts the processes that die. service/state.py lets
the commands of `rstar2 judge` find a running judge. A package imports only packages that come later in this order:
service; client, server and worker (which do not import each other); sandbox; queue; schema. The import contracts in
pyproject.toml enforce the order.
"""

from __future__ import annotations

TYPE_CHECKING = False
"""Type checkers regard this constant as true. `rstar2/__init__.py` has the same constant."""

if TYPE_CHECKING:
    from typing import Any

    from rstar2.judge.client import JudgeClient, SyncJudgeClient
    from rstar2.judge.schema import RunRequest, RunResult

__all__ = ["JudgeClient", "RunRequest", "RunResult", "SyncJudgeClient"]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Import a public name when it is first used. The table of all public names is in `rstar2/__init__.py`."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        import rstar2

        return getattr(rstar2, name)
