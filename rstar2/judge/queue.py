"""The queue in Redis: its names and the scripts that change it, each in one atomic step.

A program is a *task* in one of two streams: `tasks` for new ones, `returned` for those a worker gave back or
left behind when it died; workers read `returned` first. What became of a program is under `run:<id>`: the
empty string while it is queued or running, CANCELLED when nobody waits for it any more, its result as JSON
once it is done. That key makes an id run once: asking again for the same id finds the result or joins the
wait. `done` is a stream of the ids that were finished, which every API process follows.

The scripts are sent whole with EVAL, so a Redis that was restarted needs no loading of scripts.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from rstar2.judge.schema import RunRequest, RunResult

PREFIX = "rstar2:judge"
TASKS = f"{PREFIX}:tasks"
RETURNED = f"{PREFIX}:returned"
DONE = f"{PREFIX}:done"
WORKERS = f"{PREFIX}:workers"
"""Hash: worker name → its last heartbeat as JSON."""
OUTCOMES = f"{PREFIX}:outcomes"
"""Hash: outcome → how many programs ended so, since the queue was made."""
GROUP = "workers"
CANCELLED = "x"

QUEUED_TTL_S = 6 * 3600
RESULT_TTL_S = 300
"""How long a result can be asked for again by its id."""
CANCELLED_TTL_S = 600
MAX_TRIES = 3
"""A program that was running in this many workers when they died is answered `lost` and not run again."""

ENQUEUE = """
local state = redis.call('GET', KEYS[1])
if state and state ~= ARGV[5] then return {0, state} end
redis.call('SET', KEYS[1], '', 'EX', ARGV[4])
return {1, redis.call('XADD', KEYS[2], '*', 'id', ARGV[1], 'body', ARGV[2], 'tries', '0', 'at', ARGV[3])}
"""
"""KEYS run, tasks. ARGV id, body, now, ttl, cancelled mark. → {1, entry} or {0, state of the earlier ask}."""

COMMIT = """
redis.call('XACK', KEYS[2], ARGV[1], ARGV[2])
redis.call('XDEL', KEYS[2], ARGV[2])
local state = redis.call('GET', KEYS[1])
if state and state ~= '' then return 0 end
redis.call('SET', KEYS[1], ARGV[4], 'EX', ARGV[5])
redis.call('XADD', KEYS[3], 'MAXLEN', '~', 50000, '*', 'id', ARGV[3])
redis.call('HINCRBY', KEYS[4], ARGV[6], 1)
return 1
"""
"""KEYS run, stream, done, outcomes. ARGV group, entry, id, result, ttl, outcome. → 1: it counts."""

CANCEL = """
redis.call('XDEL', KEYS[2], ARGV[1])
if redis.call('GET', KEYS[1]) == '' then redis.call('SET', KEYS[1], ARGV[2], 'EX', ARGV[3]) end
"""
"""KEYS run, tasks. ARGV entry, cancelled mark, ttl."""

GIVE_BACK = """
redis.call('XADD', KEYS[2], '*', 'id', ARGV[3], 'body', ARGV[4], 'tries', ARGV[5], 'at', ARGV[6])
redis.call('XACK', KEYS[1], ARGV[1], ARGV[2])
redis.call('XDEL', KEYS[1], ARGV[2])
"""
"""KEYS stream, returned. ARGV group, entry, id, body, tries, at."""

REAP = """
local moved = 0
for _, stream in ipairs({KEYS[1], KEYS[2]}) do
  local pending = redis.pcall('XPENDING', stream, ARGV[1], '-', '+', 10000, ARGV[2])
  if not pending.err then
    for _, item in ipairs(pending) do
      local found = redis.call('XRANGE', stream, item[1], item[1])
      if found[1] then
        local f = found[1][2]
        redis.call('XADD', KEYS[2], '*', 'id', f[2], 'body', f[4], 'tries', tonumber(f[6]) + 1, 'at', f[8])
        moved = moved + 1
      end
      redis.call('XACK', stream, ARGV[1], item[1])
      redis.call('XDEL', stream, item[1])
    end
    redis.call('XGROUP', 'DELCONSUMER', stream, ARGV[1], ARGV[2])
  end
end
redis.call('HDEL', KEYS[3], ARGV[2])
return moved
"""
"""KEYS tasks, returned, workers. ARGV group, name of a worker that is dead. → tasks given to the others."""


def run_key(run_id: str) -> str:
    """Where the state of one program is kept."""
    return f"{PREFIX}:run:{run_id}"


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
    def from_fields(cls, stream: str, entry: str, fields: dict[str, str]) -> Task:
        return cls(stream, entry, fields["id"], fields["body"], int(fields["tries"]), float(fields["at"]))

    def request(self) -> RunRequest:
        return RunRequest.model_validate_json(self.body)


def enqueue_args(run_id: str, request: RunRequest) -> tuple[str, int, *tuple[str | float, ...]]:
    """The EVAL arguments that queue a program unless its id is known already."""
    body = request.model_dump_json()
    return (ENQUEUE, 2, run_key(run_id), TASKS, run_id, body, time.time(), QUEUED_TTL_S, CANCELLED)


def commit_args(task: Task, result: RunResult) -> tuple[str, int, *tuple[str | float, ...]]:
    """The EVAL arguments that store a result and acknowledge its task."""
    keys = (run_key(task.id), task.stream, DONE, OUTCOMES)
    text = result.model_dump_json()
    return (COMMIT, 4, *keys, GROUP, task.entry, task.id, text, RESULT_TTL_S, result.outcome)


def cancel_args(run_id: str, entry: str) -> tuple[str, int, *tuple[str | float, ...]]:
    """The EVAL arguments that take a queued program back, or have its result dropped if it runs already."""
    return (CANCEL, 2, run_key(run_id), TASKS, entry, CANCELLED, CANCELLED_TTL_S)


def give_back_args(task: Task) -> tuple[str, int, *tuple[str | float, ...]]:
    """The EVAL arguments by which a worker returns a task it has not started."""
    keys = (task.stream, RETURNED)
    return (GIVE_BACK, 2, *keys, GROUP, task.entry, task.id, task.body, task.tries, task.at)


def reap_args(worker: str) -> tuple[str, int, *tuple[str | float, ...]]:
    """The EVAL arguments that give a dead worker's tasks to the others."""
    return (REAP, 3, TASKS, RETURNED, WORKERS, GROUP, worker)
