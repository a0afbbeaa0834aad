"""What a judge requires of all workers of its queue, kept in Redis: an isolation tier, and messages that it can read.

A judge renews its requirement in Redis while it lives, so that the one of a killed judge expires. A worker registers
only if it satisfies every requirement there, and a judge starts only if every living worker, and every other judge of
the queue, fits it. Each checks and writes in one atomic step, so that neither misses the other.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from rstar2.errors import UserError
from rstar2.judge.protocol_version import PROTOCOL, conflict
from rstar2.judge.queue.liveness import WRITE_HEARTBEAT
from rstar2.judge.queue.redis_connection import Command
from rstar2.judge.queue.tasks import PREFIX, WORKERS
from rstar2.judge.schema import ISOLATION_ORDER, Isolation

REQUIREMENTS = f"{PREFIX}:requirements"
"""Hash: judge → {tier, protocol, till} as JSON; `till` in the Unix seconds of Redis."""
REQUIREMENTS_0_1 = f"{PREFIX}:required_isolation"
"""The same of judges up to version 0.1.0, without protocol. Where there is none, our judges keep a text here. Workers
and judges up to version 0.1.0 look for a hash and get an error of Redis (WRONGTYPE), so that they cannot join."""
RENEW_S = 5.0
VALID_S = 15
SILENT_S = 10
"""A worker whose last heartbeat is older does not count."""

_FUNCTIONS = """
local now = tonumber(redis.call('TIME')[1])
local function understands(spoken) return string.match(spoken or '', '^%d+%.') == ARGV[1] .. '.' end
-- Returns an entry as a table, or nothing if it lacks a time or a tier, as that of no worker or judge does.
local function read(text, time, tier)
  local is_json, state = pcall(cjson.decode, text)
  if is_json and type(state) == 'table' and type(state[time]) == 'number' and type(state[tier]) == 'string' then
    return state
  end
end
-- Returns the first judge up to version 0.1.0 that requires something, as a conflict.
local function older_judge()
  if redis.call('TYPE', KEYS[3]).ok ~= 'hash' then return nil end
  local known = redis.call('HGETALL', KEYS[3])
  for i = 1, #known, 2 do
    local requirement = read(known[i + 1], 'till', 'tier')
    if requirement and requirement.till >= now then return {'protocol', 'judge ' .. known[i], ''} end
  end
end
"""

_REGISTER = (
    WRITE_HEARTBEAT
    + _FUNCTIONS
    + """
local known = redis.call('HGETALL', KEYS[1])
for i = 1, #known, 2 do
  local requirement = read(known[i + 1], 'till', 'tier')
  if not requirement or requirement.till < now then
    redis.call('HDEL', KEYS[1], known[i])
  elseif not understands(requirement.protocol) then
    return {'protocol', 'judge ' .. known[i], requirement.protocol or ''}
  elseif string.find(ARGV[2], requirement.tier, 1, true) then
    return {'isolation', 'judge ' .. known[i], requirement.tier}
  end
end
local conflict = older_judge()
if conflict then return conflict end
write_heartbeat(KEYS[2], ARGV[3], ARGV[4])
return {}
"""
)
"""KEYS requirements, workers, requirements of version 0.1. ARGV our major version, tiers stronger than the worker's,
its name, its heartbeat. → empty, or the conflict: its kind ('isolation' or 'protocol'), the name of the other part, and
that part's tier or version."""

_REQUIRE = (
    _FUNCTIONS
    + """
local function conflict()
  local known = redis.call('HGETALL', KEYS[1])
  for i = 1, #known, 2 do
    local requirement = read(known[i + 1], 'till', 'tier')
    if requirement and requirement.till >= now and not understands(requirement.protocol) then
      return {'protocol', 'judge ' .. known[i], requirement.protocol or ''}
    end
  end
  local workers = redis.call('HGETALL', KEYS[2])
  for i = 1, #workers, 2 do
    local state = read(workers[i + 1], 'at', 'isolation')
    if state and state.at > now - tonumber(ARGV[7]) then
      local name = 'worker ' .. workers[i]
      if not understands(state.protocol) then return {'protocol', name, state.protocol or ''} end
      if string.find(ARGV[2], state.isolation, 1, true) then return {'isolation', name, state.isolation} end
    end
  end
  return older_judge()
end
local found = conflict() or {}
if #found == 0 or ARGV[8] == 'renew' then
  redis.call('HSET', KEYS[1], ARGV[3],
             cjson.encode({tier = ARGV[4], protocol = ARGV[5], till = now + tonumber(ARGV[6])}))
  redis.call('SET', KEYS[3], 'judges of version ' .. ARGV[5] .. ' are here', 'EX', ARGV[6])
end
return found
"""
)
"""KEYS those of _REGISTER. ARGV our major version, tiers weaker than the judge's, its name, its tier, its version,
seconds for which it is valid, seconds after which a silent worker does not count, 'renew' or 'begin'. → see _REGISTER.
"""


def register(worker: str, heartbeat: dict[str, Any]) -> Command:
    """Writes a worker's first heartbeat, unless it does not fit what a judge of the queue requires."""
    stronger = " ".join(ISOLATION_ORDER[ISOLATION_ORDER.index(heartbeat["isolation"]) + 1 :])
    settings = (PROTOCOL.major, stronger, worker, json.dumps(heartbeat))
    return ("EVAL", _REGISTER, 3, REQUIREMENTS, WORKERS, REQUIREMENTS_0_1, *settings)


def require(judge: str, tier: Isolation, *, renew: bool = False) -> Command:
    """Writes what a judge requires, unless some worker or other judge of the queue does not fit.

    Args:
        renew: whether the judge is running already. Then its requirement is written in any case, because it is what
            keeps out others that do not fit.
    """
    weaker = " ".join(ISOLATION_ORDER[: ISOLATION_ORDER.index(tier)])
    settings = (
        *(PROTOCOL.major, weaker, judge, tier, str(PROTOCOL), VALID_S, SILENT_S),
        "renew" if renew else "begin",
    )
    return ("EVAL", _REQUIRE, 3, REQUIREMENTS, WORKERS, REQUIREMENTS_0_1, *settings)


def check_registered(reply: Sequence[str], tier: Isolation) -> None:
    """Raise UserError unless `register` has registered a worker of this tier."""
    if not reply:
        return
    kind, judge, required = reply
    if kind == "protocol":
        machine = "the judge's machine"
        raise UserError(
            *conflict("this worker", judge, required, our_update="this machine", their_update=machine)
        )
    raise UserError(
        f"isolation {tier} is below the {required} that a judge of this queue requires",
        f"Run the worker under {required}, or start the judge with a lower --isolation.",
    )


def check_required(reply: Sequence[str], tier: Isolation) -> None:
    """Raise UserError if `require`, for a judge of this tier, met a part of the queue that does not fit."""
    if not reply:
        return
    kind, other, theirs = reply
    if kind == "protocol":
        machine = f"the machine of {other}"
        raise UserError(*conflict("this judge", other, theirs, our_update="this judge", their_update=machine))
    raise UserError(
        f"this judge runs under {tier}, but {other} runs under {theirs} on the same queue",
        "Stop that worker, or start this judge with the same --isolation.",
    )
