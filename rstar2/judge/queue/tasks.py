"""The keys, messages and commands of the queue in Redis.

Each program is a *task* in the stream `tasks`. If a worker returns a task, or dies while it has the task, the task
stays in this stream and keeps its position in the queue. The returned task becomes pending for the consumer NOBODY, and
an entry is added to the stream `returned`. A worker that reads an entry of `returned` claims the oldest returned tasks.
Workers read the stream `returned` before the stream `tasks`.

The *state* of a program is stored under `run:<id>`. The state begins with a fingerprint of the request. After the
fingerprint comes one of three texts: `@stream entry` while the program is queued or running, CANCELLED if nobody waits
for the program any more, or the result as JSON. The state ensures that the program with a given id runs only once. A
repeated request gets the stored result or waits for the running program. A request with the same id but a different
fingerprint is refused. When a program has finished, a notice is published on the channel `done`, which every HTTP
process reads. An HTTP process that missed the notice finds the result in the program's state.

A session belongs to one worker, and its id begins with that worker's name. The cells of a session are tasks in the
stream `cells:<worker>`, which no other worker reads. If the worker dies, its cells get the outcome `lost`. A cell may
change the variables of its session, so a cell cannot be cancelled after it was delivered to its worker. A repeated
request for a cell gets the cell's result.

If a function returns a `Command`, its docstring says what the command does.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeGuard

from pydantic import BaseModel, model_validator

from rstar2.judge.queue import scripts
from rstar2.judge.queue.redis_connection import Command
from rstar2.judge.schema import CellRequest, CellResult, RunResult, SessionRequest

PREFIX = "rstar2:judge"
TASKS = f"{PREFIX}:tasks"
RETURNED = f"{PREFIX}:returned"
"""Redis stream with one entry for each returned task, that is, for each task that is pending for NOBODY."""
NOBODY = "nobody"
"""Name of the consumer to which returned tasks belong until a worker claims them."""
TRIES = f"{PREFIX}:tries"
"""Redis hash: entry of a task → number of workers that died while they had the task."""
DONE = f"{PREFIX}:done"
"""Redis channel on which notices of finished programs are published, one per line; see `Notice`."""
WORKERS = f"{PREFIX}:workers"
"""Redis hash: worker name → its last heartbeat as JSON."""
OUTCOMES = f"{PREFIX}:outcomes"
"""Redis hash: outcome → number of programs with this outcome since the queue was created."""
WRITE_CHECK = f"{PREFIX}:write_check"
"""Key that a judge sets when it starts, to check whether Redis can store data. The key expires after one second."""
RESTARTS = f"{PREFIX}:restarts"
"""Redis hash: part of the judge ("api", "redis" or "worker") → number of times that a process of this part was
restarted."""
GROUP = "workers"
CANCELLED = "x"
REUSED = "!"
"""A command returns REUSED instead of a state if an earlier request with the same id has a different fingerprint."""
FINGERPRINT_CHARS = 16
NO_FINGERPRINT = "-" * FINGERPRINT_CHARS
"""Fingerprint of a result that is stored although Redis lost the program's state. It counts as equal to the fingerprint
of every request."""

QUEUED_TTL_S = 6 * 3600
RESULT_TTL_S = 300
"""Seconds for which a result can be requested again by its id."""
DELIVERED_TTL_S = 30
"""Seconds for which a result can be requested again after it was sent. A client requests a result again if the client's
connection broke before the result arrived."""
CANCELLED_TTL_S = 600
DONE_INLINE_CHARS = 2048
"""A result of at most this many characters is published with its notice, so that HTTP processes need not fetch it."""
WORKER_GONE = "the session ended: its worker is gone"
MAX_TRIES = 3
"""If this many workers died while they had the same program, the program gets the outcome `lost` and does not run
again."""

UNREADABLE = "the worker cannot read this task"
"""Error message if an entry of the queue is neither a program nor a cell. The entry's outcome is `lost`."""
log = logging.getLogger(__name__)

Entries = Sequence[tuple[str, Sequence[str]]]
"""Entries of a Redis stream. Each entry has an id and a list in which field names and values alternate."""


class SessionCommand(BaseModel):
    """The body of a task that opens a session on a worker, runs a cell in a session, or closes a session."""

    action: Literal["open", "cell", "close"]
    session: str
    open: SessionRequest = SessionRequest()
    cell: CellRequest | None = None

    @model_validator(mode="after")
    def _has_cell(self) -> SessionCommand:
        if self.action == "cell" and self.cell is None:
            raise ValueError("the cell is missing")
        return self


@dataclass(frozen=True)
class Task:
    """One delivery of one program to one worker."""

    stream: str
    entry: str
    id: str
    body: str
    """A `RunRequest` as JSON, or a `SessionCommand` if this task is a cell."""
    tries: int
    """Number of workers that died while they had this task."""
    at: float
    """Unix seconds at which the task was queued."""

    @classmethod
    def from_reply(cls, reply: Sequence[tuple[str, Entries]] | None) -> list[Task]:
        """Returns the tasks in a reply to XREADGROUP or to `scripts.CLAIM`.

        Entries with unexpected contents are returned as tasks, too, because every entry must be answered and
        acknowledged.
        """
        tasks = []
        for stream, entries in reply or ():
            for entry, flat in entries:
                # A task that was cancelled after it was delivered has no fields.
                if flat and stream != RETURNED:
                    fields = pairs(flat)
                    tries, at = int(_number(fields.get("tries"), 0)), _number(fields.get("at"), time.time())
                    tasks.append(cls(stream, entry, fields.get("id", ""), fields.get("body", ""), tries, at))
        return tasks

    @property
    def timeout_s(self) -> float:
        """The time limit of the program or cell in seconds, or 0 if the body contains no time limit."""
        fields = self._fields()
        cell = fields.get("cell")
        return _number((cell if isinstance(cell, dict) else fields).get("timeout_s"), 0.0)

    @property
    def session(self) -> str:
        """The id of the session to which this task belongs. The session id is empty if the task is a program."""
        return str(self._fields().get("session", ""))

    def _fields(self) -> dict[str, Any]:
        """Returns the fields of the body, or an empty dict if the body is not a JSON object."""
        try:
            fields = json.loads(self.body)
        except (ValueError, RecursionError):
            return {}
        return fields if isinstance(fields, dict) else {}

    @property
    def is_cell(self) -> bool:
        """Whether this task belongs to a session, so that only one worker can run the task."""
        return self.stream != TASKS


@dataclass(frozen=True)
class Notice:
    """The notice that is published when a program has finished."""

    id: str
    queue_s: float
    wall_s: float
    result: str
    """The result as JSON. The field is empty if the result is too long to be published with the notice."""

    @classmethod
    def from_message(cls, message: str) -> list[Notice]:
        """Returns the notices in one message on the channel `done`.

        Each line of the message is one notice: words separated by spaces, and then the result. A later version may add
        words. A line that cannot be parsed is only logged, because the program's result is also stored in Redis.
        """
        notices = []
        for line in message.split("\n"):
            words, brace, rest = line.partition("{")
            try:
                run_id, queue_s, wall_s, *_ = words.split(" ")
                notices.append(cls(run_id, float(queue_s), float(wall_s), brace + rest))
            except ValueError:
                log.error("not a notice of a finished program: %.200r", line)
        return notices


def _number(value: object, default: float) -> float:
    """Converts a number, or a text that contains a number, to a float.

    Returns `default` if `value` is not a finite number.
    """
    try:
        number = float(value) if isinstance(value, str | int | float) else math.nan
    except (ValueError, OverflowError):
        return default
    return number if math.isfinite(number) else default


def returned_entries(reply: Sequence[tuple[str, Entries]] | None) -> list[str]:
    """Returns the entries of the stream RETURNED in a reply to XREADGROUP."""
    return [entry for stream, entries in reply or () if stream == RETURNED for entry, _ in entries]


def pairs(flat: Sequence[Any]) -> dict[str, Any]:
    """Converts a list in which names and values alternate to a dictionary."""
    return dict(zip(flat[::2], flat[1::2], strict=True))


def state_key(run_id: str) -> str:
    """Returns the Redis key of a program's state."""
    return f"{PREFIX}:run:{run_id}"


def cells_stream(worker: str) -> str:
    """Returns the name of the Redis stream that holds the cells for one worker's sessions."""
    return f"{PREFIX}:cells:{worker}"


def fingerprint(request: str) -> str:
    """Returns a hash of the request, in FINGERPRINT_CHARS hexadecimal digits, to compare requests with the same id."""
    return hashlib.blake2b(request.encode(), digest_size=FINGERPRINT_CHARS // 2).hexdigest()


def delivered_state(task: Task) -> str:
    """Returns the state (without the fingerprint) of a program that is queued or running as this task."""
    return f"@{task.stream} {task.entry}"


def get_state(run_id: str) -> Command:
    """Reads the state of a program, without its fingerprint. The reply is empty if the program has no state."""
    return ("GETRANGE", state_key(run_id), FINGERPRINT_CHARS, -1)


def short_states(run_ids: Sequence[str]) -> Command:
    """Reads the states of programs, without their fingerprints.

    A state that is longer than `DONE_INLINE_CHARS` is a result. The reply contains only the
    beginning of this result.
    """
    return ("EVAL", scripts.STATES, len(run_ids), *map(state_key, run_ids), DONE_INLINE_CHARS + 1)


def is_result(state: str | None) -> TypeGuard[str]:
    """Returns whether a state is a result. `state` must not contain the fingerprint."""
    return state is not None and state.startswith("{")


def lost_cell(run_id: str, reason: str) -> CellResult:
    """Returns a result with the outcome `lost`, for a cell whose session no longer exists."""
    return CellResult(id=run_id, outcome="lost", stderr=reason, session_alive=False, session_end=reason)


def make_groups(streams: Sequence[str]) -> Command:
    """Creates streams from which workers read. Does not change streams that already exist."""
    return ("EVAL", scripts.MAKE_GROUPS, len(streams), *streams, GROUP)


def enqueue(programs: Mapping[str, str], fingerprints: Mapping[str, str] | None = None) -> Command:
    """Queues programs. See `scripts.ENQUEUE` for the reply.

    Args:
        programs: dict from program id to the program's `RunRequest` as JSON.
        fingerprints: dict from program id to the fingerprint of the client's request. If None, the fingerprints are
            computed from `programs`.
    """
    states = [state_key(run_id) for run_id in programs]
    by_id = fingerprints or {run_id: fingerprint(body) for run_id, body in programs.items()}
    items = [field for run_id, body in programs.items() for field in (run_id, by_id[run_id], body)]
    return ("EVAL", scripts.ENQUEUE, 1 + len(states), TASKS, *states, *_enqueue_settings(), *items)


def _enqueue_settings() -> Command:
    return (time.time(), QUEUED_TTL_S, CANCELLED, REUSED, NO_FINGERPRINT)


def enqueue_cell(run_id: str, body: str, worker: str, request_fingerprint: str) -> Command:
    """Queues a session command for one worker, unless the worker is dead. The reply has the same format as for
    `enqueue`.

    Args:
        run_id: id of the client's request.
        body: a `SessionCommand` as JSON.
        worker: name of the session's worker.
        request_fingerprint: fingerprint of the client's request. A repeated request must have the same fingerprint.
    """
    keys = (cells_stream(worker), state_key(run_id))
    lost = lost_cell(run_id, WORKER_GONE).model_dump_json()
    item = (run_id, request_fingerprint, body, WORKERS, worker, lost)
    return ("EVAL", scripts.ENQUEUE_IF_WORKER_ALIVE, 2, *keys, *_enqueue_settings(), *item)


def commit(finished: Sequence[tuple[Task, RunResult]]) -> Command:
    """Stores results, publishes a notice of each result, and acknowledges the results' tasks.

    See `scripts.COMMIT` for the reply.
    """
    keys = [OUTCOMES, TASKS, WORKERS]
    items: list[str | float] = []
    for task, result in finished:
        keys += (state_key(task.id), task.stream)
        items += (task.entry, task.id, result.model_dump_json())
        items += (result.outcome, result.queue_s, result.wall_s)
    settings = (GROUP, RESULT_TTL_S, DONE_INLINE_CHARS, DONE, NO_FINGERPRINT)
    return ("EVAL", scripts.COMMIT, len(keys), *keys, *settings, *items)


def cancel(run_id: str) -> Command:
    """Cancels a program. A queued program is removed, and the result of a running program will be dropped.

    A cell that was delivered to its worker is not cancelled.
    """
    settings = (CANCELLED, CANCELLED_TTL_S, GROUP, cells_stream(""))
    return ("EVAL", scripts.CANCEL, 1, state_key(run_id), *settings)


def forget(run_id: str, result: str) -> Command:
    """Deletes a result, so that a repeated request with the result's id runs the program again.

    Does nothing if the stored result is not `result`.
    """
    return ("EVAL", scripts.FORGET, 1, state_key(run_id), result)


def expire_delivered(run_ids: Sequence[str]) -> Command:
    """Makes results that were sent to their clients expire after `DELIVERED_TTL_S`."""
    return ("EVAL", scripts.DELIVERED, len(run_ids), *map(state_key, run_ids), DELIVERED_TTL_S)


def drop_results(run_ids: Sequence[str]) -> Command:
    """Deletes results that were sent to their clients, to free memory."""
    return ("EVAL", scripts.DROP_RESULTS, len(run_ids), *map(state_key, run_ids))


def claim_returned(worker: str, entries: Sequence[str], count: int) -> Command:
    """Gives the oldest returned tasks to a worker, and deletes the `entries` of RETURNED that the worker read.

    See `scripts.CLAIM` for the reply.
    """
    return _claim(NOBODY, worker, count, *entries)


def redeliver(worker: str, count: int) -> Command:
    """Delivers a worker's pending tasks to the same worker again. See `scripts.CLAIM` for the reply."""
    return _claim(worker, worker, count)


def _claim(from_consumer: str, to_consumer: str, count: int, *entries: str) -> Command:
    settings = (GROUP, from_consumer, to_consumer, count)
    return ("EVAL", scripts.CLAIM, 3, TASKS, RETURNED, TRIES, *settings, *entries)


def return_task(task: Task, worker: str) -> Command:
    """Puts a task back into the queue. The worker must not have started the task."""
    settings = (GROUP, state_key(""), NOBODY, worker)
    return ("EVAL", scripts.RETURN_TASK, 2, TASKS, RETURNED, *settings, task.entry)


def remove_worker(worker: str) -> Command:
    """Removes a dead worker and puts its tasks back into the queue.

    The reply is the number of tasks that were put back.
    """
    keys = (TASKS, RETURNED, WORKERS, cells_stream(worker), OUTCOMES, TRIES)
    settings = (GROUP, state_key(""), NOBODY, worker, WORKER_GONE, RESULT_TTL_S, DONE, QUEUED_TTL_S)
    return ("EVAL", scripts.REMOVE_WORKER, len(keys), *keys, *settings, NO_FINGERPRINT)
