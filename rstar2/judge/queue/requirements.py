"""What each judge requires of all workers of its queue: an isolation tier and a compatible protocol version.

Each judge stores its requirement in Redis and renews it while it runs, so the requirement of a dead judge expires. A
worker registers only if it satisfies all requirements. A judge starts only if every living worker satisfies the judge's
requirement, and every other judge of the queue has a compatible version. A worker registers in one atomic step, which
checks the requirements and writes the heartbeat. A judge also checks the workers and writes its requirement in one
atomic step. Therefore, if a worker and a judge start at the same time, the second one to register sees the first one.
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
"""Redis hash: judge → {tier, protocol, till} as JSON. `till` is the time at which the requirement expires, in Unix
seconds of Redis's clock."""
REQUIREMENTS_0_1 = f"{PREFIX}:required_isolation"
"""Redis hash in which judges up to version 0.1.0 store their requirements, which have no `protocol`. Judges after
version 0.1.0 store a string under this key instead of a hash. Workers and judges up to version 0.1.0 expect a hash and
get the Redis error WRONGTYPE, so that they cannot join the queue."""
RENEW_S = 5.0
VALID_S = 15
SILENT_S = 10
"""When a judge stores its requirement, workers whose last heartbeat is more than this many seconds old are ignored."""

_FUNCTIONS = """
local now = tonumber(redis.call('TIME')[1])
local function is_compatible(version) return string.match(version or '', '^%d+%.') == ARGV[1] .. '.' end
-- Returns an entry as a table, or nothing if it lacks a time or a tier: then no worker or judge wrote it.
local function read(text, time, tier)
  local is_json, state = pcall(cjson.decode, text)
  if is_json and type(state) == 'table' and type(state[time]) == 'number' and type(state[tier]) == 'string' then
    return state
  end
end
-- Returns the conflict with the first valid requirement of a judge up to version 0.1.0, or nil.
local function older_judge()
  if redis.call('TYPE', KEYS[3]).ok ~= 'hash' then return nil end
  local judges = redis.call('HGETALL', KEYS[3])
  for i = 1, #judges, 2 do
    local requirement = read(judges[i + 1], 'till', 'tier')
    if requirement and requirement.till >= now then return {'protocol', 'judge ' .. judges[i], ''} end
  end
end
"""

_REGISTER = (
    WRITE_HEARTBEAT
    + _FUNCTIONS
    + """
local judges = redis.call('HGETALL', KEYS[1])
for i = 1, #judges, 2 do
  local requirement = read(judges[i + 1], 'till', 'tier')
  if not requirement or requirement.till < now then
    redis.call('HDEL', KEYS[1], judges[i])
  elseif not is_compatible(requirement.protocol) then
    return {'protocol', 'judge ' .. judges[i], requirement.protocol or ''}
  elseif string.find(ARGV[2], requirement.tier, 1, true) then
    return {'isolation', 'judge ' .. judges[i], requirement.tier}
  end
end
local conflict = older_judge()
if conflict then return conflict end
write_heartbeat(KEYS[2], ARGV[3], ARGV[4])
return {}
"""
)
"""Registers a worker if it satisfies the requirements of all judges.

KEYS: the Redis keys REQUIREMENTS, WORKERS and REQUIREMENTS_0_1.
ARGV: this rstar2's major version, the tiers that are stronger than the worker's tier, the worker's name, the worker's
heartbeat.
Returns an empty list if there is no conflict. If there is a conflict, returns the kind of conflict ('isolation' or
'protocol'), the name of the conflicting judge or worker, and its tier or version.
"""

_REQUIRE = (
    _FUNCTIONS
    + """
local function conflict()
  local judges = redis.call('HGETALL', KEYS[1])
  for i = 1, #judges, 2 do
    local requirement = read(judges[i + 1], 'till', 'tier')
    if requirement and requirement.till >= now and not is_compatible(requirement.protocol) then
      return {'protocol', 'judge ' .. judges[i], requirement.protocol or ''}
    end
  end
  local workers = redis.call('HGETALL', KEYS[2])
  for i = 1, #workers, 2 do
    local state = read(workers[i + 1], 'at', 'isolation')
    if state and state.at > now - tonumber(ARGV[7]) then
      local name = 'worker ' .. workers[i]
      if not is_compatible(state.protocol) then return {'protocol', name, state.protocol or ''} end
      if string.find(ARGV[2], state.isolation, 1, true) then return {'isolation', name, state.isolation} end
    end
  end
  return older_judge()
end
local reply = conflict() or {}
if #reply == 0 or ARGV[8] == 'renew' then
  redis.call('HSET', KEYS[1], ARGV[3],
             cjson.encode({tier = ARGV[4], protocol = ARGV[5], till = now + tonumber(ARGV[6])}))
  redis.call('SET', KEYS[3], 'judges of version ' .. ARGV[5] .. ' are here', 'EX', ARGV[6])
end
return reply
"""
)
"""Stores or renews a judge's requirement if no worker and no other judge conflicts with it.

KEYS: the same as for _REGISTER.
ARGV: this rstar2's major version, the tiers that are weaker than the judge's tier, the judge's name, tier and version,
seconds for which the requirement is valid, seconds after which a silent worker is ignored, 'renew' or 'begin'.
Returns what the script _REGISTER returns. If the last element of ARGV is 'renew', the requirement is stored even if
there is a conflict.
"""


def register(worker: str, heartbeat: dict[str, Any]) -> Command:
    """Returns the command that registers a worker if it satisfies the requirements of all judges.

    The command registers the worker by writing its first heartbeat.

    Pass the reply to this command to `check_registered`.
    """
    stronger = " ".join(ISOLATION_ORDER[ISOLATION_ORDER.index(heartbeat["isolation"]) + 1 :])
    settings = (PROTOCOL.major, stronger, worker, json.dumps(heartbeat))
    return ("EVAL", _REGISTER, 3, REQUIREMENTS, WORKERS, REQUIREMENTS_0_1, *settings)


def require(judge: str, tier: Isolation, *, renew: bool = False) -> Command:
    """Returns the command that stores a judge's requirement if no worker and no other judge conflicts with it.

    Pass the reply to this command to `check_required`.

    Args:
        judge: the judge's name.
        tier: the weakest tier that the judge accepts.
        renew: whether the judge is already running. The requirement of a running judge is stored even if there is a
            conflict, because the requirement keeps incompatible workers out of the queue.
    """
    weaker = " ".join(ISOLATION_ORDER[: ISOLATION_ORDER.index(tier)])
    settings = (
        *(PROTOCOL.major, weaker, judge, tier, str(PROTOCOL), VALID_S, SILENT_S),
        "renew" if renew else "begin",
    )
    return ("EVAL", _REQUIRE, 3, REQUIREMENTS, WORKERS, REQUIREMENTS_0_1, *settings)


def check_registered(reply: Sequence[str], tier: Isolation) -> None:
    """Raises UserError if the reply to `register` reports a conflict. `tier` is the worker's isolation tier."""
    if not reply:
        return
    kind, judge, required = reply
    if kind == "protocol":
        machine = "the judge's machine"
        raise UserError(
            *conflict("this worker", judge, required, our_update="this machine", their_update=machine)
        )
    raise UserError(
        f"isolation {tier} is weaker than {required}, which a judge of this queue requires",
        f"Run the worker under {required}, or start the judge with a lower --isolation.",
    )


def check_required(reply: Sequence[str], tier: Isolation) -> None:
    """Raises UserError if the reply to `require` reports a conflict.

    `tier` is the weakest tier that the judge accepts.
    """
    if not reply:
        return
    kind, other, value = reply
    if kind == "protocol":
        machine = f"the machine of {other}"
        raise UserError(*conflict("this judge", other, value, our_update="this judge", their_update=machine))
    raise UserError(
        f"this judge runs under isolation {tier}, but {other} runs under {value} on the same queue",
        "Stop that worker, or start this judge with the same --isolation.",
    )
