"""The queue in Redis: its names and the scripts that change it, each in one atomic step.

A program is a *task* in a stream: `tasks` for new ones, `returned` for those a worker gave back or left
behind when it died; workers read `returned` first. What became of a program is its *state*, under
`run:<id>`: `@stream entry` while it is queued or running, CANCELLED when nobody waits for it any more, its
result as JSON once it is done. The state makes an id run once: asking again for the same id finds the result
or joins the wait. What was finished is told on the channel `done`, to which every API process listens; one
that missed something finds it in the states.

A session lives in one worker, and its id begins with that worker's name. Its cells are tasks in the stream
`cells:<worker>`, which no other worker reads: when the worker dies they are answered `lost`. A cell changes
what its session holds, so one that was delivered can no longer be cancelled: whoever asks again under its id
must find what became of it.

The scripts are sent whole with EVAL, so a Redis that was restarted needs no loading of scripts.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass

from rstar2.judge.schema import CellResult, RunResult

PREFIX = "rstar2:judge"
TASKS = f"{PREFIX}:tasks"
RETURNED = f"{PREFIX}:returned"
DONE = f"{PREFIX}:done"
"""Channel: what was finished, a line for each; see `Notice`."""
WORKERS = f"{PREFIX}:workers"
"""Hash: worker name → its last heartbeat as JSON."""
OUTCOMES = f"{PREFIX}:outcomes"
"""Hash: outcome → how many programs ended so, since the queue was made."""
RESTARTS = f"{PREFIX}:restarts"
"""Hash: part of a service → how often it died and was started again."""
GROUP = "workers"
CANCELLED = "x"

QUEUED_TTL_S = 6 * 3600
RESULT_TTL_S = 300
"""How long a result can be asked for again by its id."""
DELIVERED_TTL_S = 30
"""The same once it was sent to whoever asked: their connection may have broken meanwhile."""
CANCELLED_TTL_S = 600
DONE_INLINE_CHARS = 2048
"""A result as short as this is told on `done` itself, which saves the front from asking for it."""
WORKER_GONE = "the session ended: the worker that held it is gone"
MAX_TRIES = 3
"""A program that this many workers held when they died is answered `lost` and not run again."""

ENQUEUE = """
local known = {}
for i = 2, #KEYS do
  local id, body = ARGV[2 * i], ARGV[2 * i + 1]
  local state = redis.call('GET', KEYS[i])
  if state and state ~= ARGV[3] then
    known[i - 1] = state
  else
    local entry = redis.call('XADD', KEYS[1], '*', 'id', id, 'body', body, 'tries', '0', 'at', ARGV[1])
    redis.call('SET', KEYS[i], '@' .. KEYS[1] .. ' ' .. entry, 'EX', ARGV[2])
    known[i - 1] = ''
  end
end
return known
"""
"""KEYS stream, states. ARGV now, ttl, CANCELLED, then id and body of each.
→ for each, the state it has already, or '' if it was queued."""

IF_ALIVE = """
if redis.call('HEXISTS', ARGV[6], ARGV[7]) == 0 then
  local state = redis.call('GET', KEYS[2])
  return {state and state ~= ARGV[3] and state or ARGV[8]}
end
"""
"""ARGV, after those of ENQUEUE with one item: workers, the only worker that can run it, the result if that
worker is dead."""

COMMIT = """
local entries, outcomes, notices = {}, {}, {}
for i = 5, #KEYS, 2 do
  local state, stream, at = KEYS[i], KEYS[i + 1], 3 * i - 10
  local entry, id, text = ARGV[at], ARGV[at + 1], ARGV[at + 2]
  entries[stream] = entries[stream] or {}
  table.insert(entries[stream], entry)
  local before = redis.call('GET', state)
  if not before or string.sub(before, 1, 1) == '@' then
    redis.call('SET', state, text, 'EX', ARGV[2])
    local told = #text <= tonumber(ARGV[3]) and text or ''
    table.insert(notices, table.concat({id, ARGV[at + 4], ARGV[at + 5], told}, ' '))
    outcomes[ARGV[at + 3]] = (outcomes[ARGV[at + 3]] or 0) + 1
  end
end
for stream, done in pairs(entries) do
  redis.call('XACK', stream, ARGV[1], unpack(done))
  redis.call('XDEL', stream, unpack(done))
end
for outcome, count in pairs(outcomes) do redis.call('HINCRBY', KEYS[1], outcome, count) end
if #notices > 0 then redis.call('PUBLISH', ARGV[4], table.concat(notices, '\\n')) end
local unfinished = redis.call('XLEN', KEYS[2]) + redis.call('XLEN', KEYS[3])
return {#notices, unfinished, redis.call('HLEN', KEYS[4])}
"""
"""KEYS outcomes, tasks, returned, workers, then state and stream of each. ARGV group, ttl, the longest result
that is told at once, done, then entry, id, result, outcome, queue_s, wall_s of each.
→ how many of these results count (the others had one already, or nobody waits for them), how many programs of
the queue are unfinished, and how many workers there are."""

CANCEL = """
local state = redis.call('GET', KEYS[1])
local stream, entry = string.match(state or '', '^@(%S+) (%S+)$')
if not stream then return 0 end
if string.sub(stream, 1, #ARGV[4]) == ARGV[4] then
  local delivered = redis.pcall('XPENDING', stream, ARGV[3], entry, entry, 1)
  if #delivered > 0 then return 0 end
end
redis.call('XDEL', stream, entry)
redis.call('SET', KEYS[1], ARGV[1], 'EX', ARGV[2])
return 1
"""
"""KEYS state. ARGV CANCELLED, ttl, group, prefix of streams of cells. → 1 if it was queued, or running and no
cell."""

DELIVERED = """
for _, state in ipairs(KEYS) do redis.call('EXPIRE', state, ARGV[1]) end
"""
"""KEYS states. ARGV ttl."""

FORGET = """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
return redis.call('DEL', KEYS[1])
"""
"""KEYS state. ARGV the result it must hold. → 1 if it was forgotten."""

_RETURN_ONE = """
local function give_back(prefix, returned, f, tries)
  local key = prefix .. f[2]
  local state = redis.call('GET', key)
  if state and string.sub(state, 1, 1) ~= '@' then return 0 end
  local entry = redis.call('XADD', returned, '*', 'id', f[2], 'body', f[4], 'tries', tries, 'at', f[8])
  redis.call('SET', key, '@' .. returned .. ' ' .. entry, 'EX', ARGV[3])
  return 1
end
"""

RETURN_TASK = (
    _RETURN_ONE
    + """
local found = redis.call('XRANGE', KEYS[1], ARGV[4], ARGV[4])
redis.call('XACK', KEYS[1], ARGV[1], ARGV[4])
redis.call('XDEL', KEYS[1], ARGV[4])
if not found[1] then return 0 end
return give_back(ARGV[2], KEYS[2], found[1][2], found[1][2][6])
"""
)
"""KEYS stream, returned. ARGV group, prefix of states, ttl, entry. → 1, or 0 if it was cancelled."""

REMOVE_WORKER = (
    _RETURN_ONE
    + """
local moved = 0
for _, stream in ipairs({KEYS[1], KEYS[2]}) do
  local pending = redis.pcall('XPENDING', stream, ARGV[1], '-', '+', 10000, ARGV[4])
  if not pending.err then
    for _, item in ipairs(pending) do
      local found = redis.call('XRANGE', stream, item[1], item[1])
      redis.call('XACK', stream, ARGV[1], item[1])
      redis.call('XDEL', stream, item[1])
      if found[1] then
        local f = found[1][2]
        moved = moved + give_back(ARGV[2], KEYS[2], f, tonumber(f[6]) + 1)
      end
    end
    redis.call('XGROUP', 'DELCONSUMER', stream, ARGV[1], ARGV[4])
  end
end
for _, entry in ipairs(redis.call('XRANGE', KEYS[4], '-', '+')) do
  local id = entry[2][2]
  redis.call('SET', ARGV[2] .. id, cjson.encode({id = id, outcome = 'lost', stderr = ARGV[5],
             session_alive = false, session_end = ARGV[5]}), 'EX', ARGV[6])
  redis.call('PUBLISH', ARGV[7], id .. ' 0 0 ')
  redis.call('HINCRBY', KEYS[5], 'lost', 1)
end
redis.call('DEL', KEYS[4])
redis.call('HDEL', KEYS[3], ARGV[4])
return moved
"""
)
"""KEYS tasks, returned, workers, the worker's cells, outcomes. ARGV group, prefix of states, ttl of what is
queued, name of a worker that is dead, what its cells are told, ttl of results, done.
→ tasks given to the others."""

Eval = tuple[str, int, *tuple[str | float, ...]]
"""What goes to EVAL: script, number of keys, keys and arguments."""
Entries = Sequence[tuple[str, Sequence[str]]]
"""Of a stream: the id of each, and its fields, names and values by turns."""


def state_key(run_id: str) -> str:
    """Where the state of one program is kept."""
    return f"{PREFIX}:run:{run_id}"


def cells_stream(worker: str) -> str:
    """Where cells for the sessions of one worker queue."""
    return f"{PREFIX}:cells:{worker}"


def delivered_state(task: Task) -> str:
    """The state of a program while this delivery of it counts."""
    return f"@{task.stream} {task.entry}"


def is_result(state: str | None) -> bool:
    """Whether a state is a result."""
    return state is not None and state.startswith("{")


@dataclass(frozen=True)
class Task:
    """One delivery of one program to one worker."""

    stream: str
    entry: str
    id: str
    body: str
    tries: int
    """How many workers died while they held it."""
    at: float
    """Unix seconds at which it was queued."""

    @classmethod
    def all_of(cls, answer: Sequence[tuple[str, Entries]] | None) -> list[Task]:
        """Those in what XREADGROUP answers, by stream."""
        found = []
        for stream, entries in answer or ():
            for entry, flat in entries:
                # A task that was cancelled after it was delivered has no fields left.
                if flat:
                    of = dict(zip(flat[::2], flat[1::2], strict=True))
                    task = cls(stream, entry, of["id"], of["body"], int(of["tries"]), float(of["at"]))
                    found.append(task)
        return found

    @property
    def timeout_s(self) -> float:
        """The program's own limit."""
        body = json.loads(self.body)
        return float((body.get("cell") or body).get("timeout_s", 0.0))

    @property
    def session(self) -> str:
        """The session it is for; empty for a plain program."""
        return str(json.loads(self.body).get("session", ""))

    @property
    def is_cell(self) -> bool:
        """Whether only this worker can do it."""
        return self.stream not in (TASKS, RETURNED)


@dataclass(frozen=True)
class Notice:
    """What is told of one program that was finished."""

    id: str
    queue_s: float
    wall_s: float
    result: str
    """Its result as JSON; empty where it is too long to be told."""

    @classmethod
    def all_of(cls, message: str) -> list[Notice]:
        """Those of one message on `done`."""
        parts = [line.split(" ", 3) for line in message.split("\n")]
        return [cls(run_id, float(queue_s), float(wall_s), text) for run_id, queue_s, wall_s, text in parts]


def _eval(script: str, keys: Sequence[str], arguments: Sequence[str | float]) -> Eval:
    fields = [*keys, *arguments]
    return (script, len(keys), *fields)


def enqueue_args(programs: Sequence[tuple[str, str]]) -> Eval:
    """Queues programs, each an id and JSON, unless their ids are known already."""
    states = [state_key(run_id) for run_id, _ in programs]
    items = [field for program in programs for field in program]
    return _eval(ENQUEUE, [TASKS, *states], [time.time(), QUEUED_TTL_S, CANCELLED, *items])


def enqueue_cell_args(run_id: str, body: str, worker: str) -> Eval:
    """Queues an order to the sessions of one worker, unless its id is known already or the worker dead."""
    gone = CellResult(
        id=run_id, outcome="lost", stderr=WORKER_GONE, session_alive=False, session_end=WORKER_GONE
    )
    keys = (cells_stream(worker), state_key(run_id))
    item = (run_id, body, WORKERS, worker, gone.model_dump_json())
    return _eval(IF_ALIVE + ENQUEUE, keys, [time.time(), QUEUED_TTL_S, CANCELLED, *item])


def commit_args(done: Sequence[tuple[Task, RunResult]]) -> Eval:
    """Stores results and acknowledges their tasks."""
    keys: list[str] = []
    items: list[str | float] = []
    for task, result in done:
        keys += (state_key(task.id), task.stream)
        items += (
            task.entry,
            task.id,
            result.model_dump_json(),
            result.outcome,
            result.queue_s,
            result.wall_s,
        )
    return _eval(
        COMMIT,
        [OUTCOMES, TASKS, RETURNED, WORKERS, *keys],
        [GROUP, RESULT_TTL_S, DONE_INLINE_CHARS, DONE, *items],
    )


def cancel_args(run_id: str) -> Eval:
    """Takes a queued program back; has its result dropped if it runs already, unless it is a cell."""
    return _eval(CANCEL, [state_key(run_id)], [CANCELLED, CANCELLED_TTL_S, GROUP, cells_stream("")])


def forget_args(run_id: str, result: str) -> Eval:
    """Forgets a result, so that its id can be asked for anew; nothing if the id has another by now."""
    return _eval(FORGET, [state_key(run_id)], [result])


def delivered_args(run_ids: Sequence[str]) -> Eval:
    """Has results that were sent to whoever asked expire sooner."""
    return _eval(DELIVERED, [state_key(run_id) for run_id in run_ids], [DELIVERED_TTL_S])


def return_task_args(task: Task) -> Eval:
    """Returns a task that a worker has not started."""
    return _eval(RETURN_TASK, [task.stream, RETURNED], [GROUP, state_key(""), QUEUED_TTL_S, task.entry])


def remove_worker_args(worker: str) -> Eval:
    """Gives a dead worker's tasks to the others."""
    keys = (TASKS, RETURNED, WORKERS, cells_stream(worker), OUTCOMES)
    return _eval(
        REMOVE_WORKER, keys, [GROUP, state_key(""), QUEUED_TTL_S, worker, WORKER_GONE, RESULT_TTL_S, DONE]
    )
