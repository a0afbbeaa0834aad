"""The queue in Redis: its keys, what travels in them, and the commands that change it.

A program is a *task* in the stream `tasks`. One that a worker returned, or left behind when it died, stays there, so
that it keeps its age: it is pending for the consumer NOBODY, and an entry of the stream `returned` says so; who reads
such an entry claims the oldest of these tasks. Workers read `returned` first.

The *state* of a program, under `run:<id>`, is a fingerprint of what was asked for, and after it `@stream entry` while
it is queued or running, CANCELLED when nobody waits for it any more, and its result as JSON once it is done. The
state makes an id run once: who asks again for the same id finds the result or joins the wait, and who asks for
something else under it is told. Finished programs are published on the channel `done`, which every HTTP process
reads; one that missed a message finds the result in the states.

A session lives in one worker, and its id begins with that worker's name. Its cells are tasks in the stream
`cells:<worker>`, which no other worker reads: when the worker dies they are answered `lost`. A cell changes what
its session holds, so one that was delivered can no longer be cancelled: who asks again under its id must find its
result.
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
"""Stream: an entry for each task that NOBODY has."""
NOBODY = "nobody"
"""The consumer of TASKS for which returned tasks are pending."""
TRIES = f"{PREFIX}:tries"
"""Hash: entry of a task → how many workers died while they held it."""
DONE = f"{PREFIX}:done"
"""Channel: finished programs, one per line; see `Notice`."""
WORKERS = f"{PREFIX}:workers"
"""Hash: worker name → its last heartbeat as JSON."""
OUTCOMES = f"{PREFIX}:outcomes"
"""Hash: outcome → how many programs ended so, since the queue was made."""
WRITE_CHECK = f"{PREFIX}:write_check"
"""A key that a judge sets as it starts, to see whether anything can be stored; it expires at once."""
RESTARTS = f"{PREFIX}:restarts"
"""Hash: part of a service → how often it died and was started again."""
GROUP = "workers"
CANCELLED = "x"
REUSED = "!"
"""What is answered in place of a state where something else was asked for under the id before."""
FINGERPRINT_CHARS = 16
NO_FINGERPRINT = "-" * FINGERPRINT_CHARS
"""Of a result whose program Redis had forgotten; it fits whatever is asked."""

QUEUED_TTL_S = 6 * 3600
RESULT_TTL_S = 300
"""How long a result can be asked for again by its id."""
DELIVERED_TTL_S = 30
"""The same once it was sent to the client: its connection may have broken meanwhile."""
CANCELLED_TTL_S = 600
DONE_INLINE_CHARS = 2048
"""A result as short as this is published on `done` itself, which saves the HTTP process from fetching it."""
WORKER_GONE = "the session ended: the worker that held it is gone"
MAX_TRIES = 3
"""A program that this many workers held when they died is answered `lost` and not run again."""

UNREADABLE = "the worker cannot read this"
"""Why something in the queue that is no program and no cell is answered `lost`."""
log = logging.getLogger(__name__)

Entries = Sequence[tuple[str, Sequence[str]]]
"""Of a stream: the id of each, and its fields, names and values by turns."""


class SessionCommand(BaseModel):
    """The body of a task for a worker's sessions: open one, run a cell in it, or close it."""

    action: Literal["open", "cell", "close"]
    session: str
    open: SessionRequest = SessionRequest()
    cell: CellRequest | None = None

    @model_validator(mode="after")
    def _has_cell(self) -> SessionCommand:
        if self.action == "cell" and self.cell is None:
            raise ValueError("no cell")
        return self


@dataclass(frozen=True)
class Task:
    """One delivery of one program to one worker."""

    stream: str
    entry: str
    id: str
    body: str
    """A `RunRequest` as JSON; for a cell, a `SessionCommand`."""
    tries: int
    """How many workers died while they held it."""
    at: float
    """Unix seconds at which it was queued."""

    @classmethod
    def from_reply(cls, reply: Sequence[tuple[str, Entries]] | None) -> list[Task]:
        """The tasks in a reply to XREADGROUP or to `claim`.

        Whatever else is in an entry is a task too, which has to be answered and acknowledged like any other.
        """
        tasks = []
        for stream, entries in reply or ():
            for entry, flat in entries:
                # A task that was cancelled after it was delivered has no fields left.
                if flat and stream != RETURNED:
                    of = pairs(flat)
                    tries, at = int(_number(of.get("tries"), 0)), _number(of.get("at"), time.time())
                    tasks.append(cls(stream, entry, of.get("id", ""), of.get("body", ""), tries, at))
        return tasks

    @property
    def timeout_s(self) -> float:
        """The program's own limit."""
        fields = self._fields()
        cell = fields.get("cell")
        return _number((cell if isinstance(cell, dict) else fields).get("timeout_s"), 0.0)

    @property
    def session(self) -> str:
        """The session it is for; empty for a plain program."""
        return str(self._fields().get("session", ""))

    def _fields(self) -> dict[str, Any]:
        """Those of the body; none if it cannot be read."""
        try:
            fields = json.loads(self.body)
        except (ValueError, RecursionError):
            return {}
        return fields if isinstance(fields, dict) else {}

    @property
    def is_cell(self) -> bool:
        """Whether only this worker can run it."""
        return self.stream != TASKS


@dataclass(frozen=True)
class Notice:
    """What is published about one finished program."""

    id: str
    queue_s: float
    wall_s: float
    result: str
    """Its result as JSON; empty where it is too long to be published."""

    @classmethod
    def from_message(cls, message: str) -> list[Notice]:
        """Returns those of one message on `done`.

        A line holds words, and then the result. A later version may add words. A line that cannot be read is logged
        and ignored: the result is in Redis, if there is one.
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


def _number(value: object, otherwise: float) -> float:
    """A finite number, or the text of one; or else the other number."""
    try:
        number = float(value) if isinstance(value, str | int | float) else math.nan
    except (ValueError, OverflowError):
        return otherwise
    return number if math.isfinite(number) else otherwise


def returned_entries(reply: Sequence[tuple[str, Entries]] | None) -> list[str]:
    """The entries of RETURNED in a reply to XREADGROUP."""
    return [entry for stream, entries in reply or () if stream == RETURNED for entry, _ in entries]


def pairs(flat: Sequence[Any]) -> dict[str, Any]:
    """A reply that holds names and values by turns."""
    return dict(zip(flat[::2], flat[1::2], strict=True))


def state_key(run_id: str) -> str:
    """Where the state of one program is kept."""
    return f"{PREFIX}:run:{run_id}"


def cells_stream(worker: str) -> str:
    """Where cells for the sessions of one worker queue."""
    return f"{PREFIX}:cells:{worker}"


def fingerprint(asked: str) -> str:
    """What tells one thing that is asked for from another, FINGERPRINT_CHARS long."""
    return hashlib.blake2b(asked.encode(), digest_size=FINGERPRINT_CHARS // 2).hexdigest()


def delivered_state(task: Task) -> str:
    """The state of a program, without fingerprint, while this task of it counts."""
    return f"@{task.stream} {task.entry}"


def get_state(run_id: str) -> Command:
    """→ the state of a program without its fingerprint; empty where there is none."""
    return ("GETRANGE", state_key(run_id), FINGERPRINT_CHARS, -1)


def short_states(run_ids: Sequence[str]) -> Command:
    """→ the states of programs without fingerprints, as far as a state that is no longer than what is published."""
    return ("EVAL", scripts.STATES, len(run_ids), *map(state_key, run_ids), DONE_INLINE_CHARS + 1)


def is_result(state: str | None) -> TypeGuard[str]:
    """Whether a state, without its fingerprint, is a result."""
    return state is not None and state.startswith("{")


def lost_cell(run_id: str, reason: str) -> CellResult:
    """The result of a cell whose session is gone."""
    return CellResult(id=run_id, outcome="lost", stderr=reason, session_alive=False, session_end=reason)


def make_groups(streams: Sequence[str]) -> Command:
    """Makes streams that workers can read, where they are not there yet."""
    return ("EVAL", scripts.MAKE_GROUPS, len(streams), *streams, GROUP)


def enqueue(programs: Mapping[str, str], fingerprints: Mapping[str, str] | None = None) -> Command:
    """Queues programs, JSON by id. → see `scripts.ENQUEUE`.

    Args:
        fingerprints: by id, of what the clients asked for; by default those of the programs' JSON.
    """
    states = [state_key(run_id) for run_id in programs]
    asked = fingerprints or {run_id: fingerprint(body) for run_id, body in programs.items()}
    items = [field for run_id, body in programs.items() for field in (run_id, asked[run_id], body)]
    return ("EVAL", scripts.ENQUEUE, 1 + len(states), TASKS, *states, *_enqueue_settings(), *items)


def _enqueue_settings() -> Command:
    return (time.time(), QUEUED_TTL_S, CANCELLED, REUSED, NO_FINGERPRINT)


def enqueue_cell(run_id: str, body: str, worker: str, asked: str) -> Command:
    """Queues a command for the sessions of one worker, unless that worker is dead. → see `enqueue`.

    Args:
        asked: fingerprint of what the client asked for, which must be the same whenever it asks under this id.
    """
    keys = (cells_stream(worker), state_key(run_id))
    lost = lost_cell(run_id, WORKER_GONE).model_dump_json()
    item = (run_id, asked, body, WORKERS, worker, lost)
    return ("EVAL", scripts.ENQUEUE_IF_WORKER_ALIVE, 2, *keys, *_enqueue_settings(), *item)


def commit(finished: Sequence[tuple[Task, RunResult]]) -> Command:
    """Stores results, publishes them and acknowledges their tasks. → see `scripts.COMMIT`."""
    keys = [OUTCOMES, TASKS, WORKERS]
    items: list[str | float] = []
    for task, result in finished:
        keys += (state_key(task.id), task.stream)
        items += (task.entry, task.id, result.model_dump_json())
        items += (result.outcome, result.queue_s, result.wall_s)
    settings = (GROUP, RESULT_TTL_S, DONE_INLINE_CHARS, DONE, NO_FINGERPRINT)
    return ("EVAL", scripts.COMMIT, len(keys), *keys, *settings, *items)


def cancel(run_id: str) -> Command:
    """Takes a queued program out; has its result dropped if it runs already, unless it is a cell."""
    settings = (CANCELLED, CANCELLED_TTL_S, GROUP, cells_stream(""))
    return ("EVAL", scripts.CANCEL, 1, state_key(run_id), *settings)


def forget(run_id: str, result: str) -> Command:
    """Forgets a result, so that its id can be asked for anew; nothing if the id has another by now."""
    return ("EVAL", scripts.FORGET, 1, state_key(run_id), result)


def expire_delivered(run_ids: Sequence[str]) -> Command:
    """Has results that were sent to their clients expire sooner."""
    return ("EVAL", scripts.DELIVERED, len(run_ids), *map(state_key, run_ids), DELIVERED_TTL_S)


def drop_results(run_ids: Sequence[str]) -> Command:
    """Drops results that were sent to their clients, because others need the memory."""
    return ("EVAL", scripts.DROP_RESULTS, len(run_ids), *map(state_key, run_ids))


def claim_returned(worker: str, entries: Sequence[str], count: int) -> Command:
    """Gives a worker the oldest returned tasks, for entries of RETURNED that it read. → see `scripts.CLAIM`."""
    return _claim(NOBODY, worker, count, *entries)


def claim_own(worker: str, count: int) -> Command:
    """Delivers to a worker again what it has. → see `scripts.CLAIM`."""
    return _claim(worker, worker, count)


def _claim(holder: str, worker: str, count: int, *entries: str) -> Command:
    return ("EVAL", scripts.CLAIM, 3, TASKS, RETURNED, TRIES, GROUP, holder, worker, count, *entries)


def return_task(task: Task, worker: str) -> Command:
    """Returns a task that this worker has not started."""
    settings = (GROUP, state_key(""), NOBODY, worker)
    return ("EVAL", scripts.RETURN_TASK, 2, TASKS, RETURNED, *settings, task.entry)


def remove_worker(worker: str) -> Command:
    """Forgets a dead worker and gives its tasks to the others. → how many."""
    keys = (TASKS, RETURNED, WORKERS, cells_stream(worker), OUTCOMES, TRIES)
    settings = (GROUP, state_key(""), NOBODY, worker, WORKER_GONE, RESULT_TTL_S, DONE, QUEUED_TTL_S)
    return ("EVAL", scripts.REMOVE_WORKER, len(keys), *keys, *settings, NO_FINGERPRINT)
