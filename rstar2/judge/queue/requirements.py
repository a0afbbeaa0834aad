"""What a judge requires of all workers of its queue, kept in Redis: an isolation tier, and messages that it can read.

A judge writes its requirement to Redis again and again while it lives, so that the one of a killed judge expires.
A worker registers only if it satisfies every requirement there, and a judge starts only if every living worker, and
every other judge of the queue, fits it. Each checks and writes in one atomic step, so that neither misses the other.
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

REQUIREMENTS = f"{PREFIX}:required_isolation"
"""Hash: judge → {tier, protocol, till} as JSON; `till` in the Unix seconds of Redis."""
RENEW_S = 5.0
KEPT_S = 15
SILENT_S = 10
"""A worker whose last heartbeat is older is not asked for its tier."""

_UNDERSTANDS = """
local function understands(spoken) return string.match(spoken or '', '^%d+%.') == ARGV[1] .. '.' end
"""

_REGISTER = (
    WRITE_HEARTBEAT
    + _UNDERSTANDS
    + """
local now = tonumber(redis.call('TIME')[1])
local known = redis.call('HGETALL', KEYS[1])
for i = 1, #known, 2 do
  local requirement = cjson.decode(known[i + 1])
  if requirement.till < now then
    redis.call('HDEL', KEYS[1], known[i])
  elseif not understands(requirement.protocol) then
    return {'protocol', 'judge ' .. known[i], requirement.protocol or ''}
  elseif string.find(ARGV[2], requirement.tier, 1, true) then
    return {'isolation', 'judge ' .. known[i], requirement.tier}
  end
end
write_heartbeat(KEYS[2], ARGV[3], ARGV[4])
return {}
"""
)
"""KEYS requirements, workers. ARGV our major version, tiers stronger than the worker's, its name, its heartbeat.
→ nothing, or what does not fit ('isolation' or 'protocol'), to whom, and which tier or version that one has."""

_REQUIRE = (
    _UNDERSTANDS
    + """
local now = tonumber(redis.call('TIME')[1])
local known = redis.call('HGETALL', KEYS[1])
for i = 1, #known, 2 do
  local requirement = cjson.decode(known[i + 1])
  if requirement.till >= now and not understands(requirement.protocol) then
    return {'protocol', 'judge ' .. known[i], requirement.protocol or ''}
  end
end
local workers = redis.call('HGETALL', KEYS[2])
for i = 1, #workers, 2 do
  local state = cjson.decode(workers[i + 1])
  if state.at > now - tonumber(ARGV[7]) then
    local name = 'worker ' .. workers[i]
    if not understands(state.protocol) then return {'protocol', name, state.protocol or ''} end
    if string.find(ARGV[2], state.isolation, 1, true) then return {'isolation', name, state.isolation} end
  end
end
redis.call('HSET', KEYS[1], ARGV[3],
           cjson.encode({tier = ARGV[4], protocol = ARGV[5], till = now + tonumber(ARGV[6])}))
return {}
"""
)
"""KEYS requirements, workers. ARGV our major version, tiers weaker than the judge's, its name, its tier, its version,
seconds kept, seconds after which a silent worker does not count. → see _REGISTER."""


def register(worker: str, heartbeat: dict[str, Any]) -> Command:
    """Writes a worker's first heartbeat, unless it does not fit what a judge of the queue requires."""
    stronger = " ".join(ISOLATION_ORDER[ISOLATION_ORDER.index(heartbeat["isolation"]) + 1 :])
    settings = (PROTOCOL.major, stronger, worker, json.dumps(heartbeat))
    return ("EVAL", _REGISTER, 2, REQUIREMENTS, WORKERS, *settings)


def require(judge: str, tier: Isolation) -> Command:
    """Writes what a judge requires, unless some worker or other judge of the queue does not fit."""
    weaker = " ".join(ISOLATION_ORDER[: ISOLATION_ORDER.index(tier)])
    settings = (PROTOCOL.major, weaker, judge, tier, str(PROTOCOL), KEPT_S, SILENT_S)
    return ("EVAL", _REQUIRE, 2, REQUIREMENTS, WORKERS, *settings)


def check_registered(reply: Sequence[str], tier: Isolation) -> None:
    """Raise UserError unless `register` has registered a worker of this tier."""
    if not reply:
        return
    what, judge, required = reply
    if what == "protocol":
        machine = "the judge's machine"
        raise UserError(*conflict("this worker", judge, required, we_are="this machine", they_are=machine))
    raise UserError(
        f"isolation {tier} is below the {required} that a judge of this queue requires",
        f"Run the worker under {required}, or start the judge with a lower --isolation.",
    )


def check_required(reply: Sequence[str], tier: Isolation) -> None:
    """Raise UserError unless `require` has written the requirement of a judge of this tier."""
    if not reply:
        return
    what, other, found = reply
    if what == "protocol":
        machine = f"the machine of {other}"
        raise UserError(*conflict("this judge", other, found, we_are="this judge", they_are=machine))
    raise UserError(
        f"this judge runs under {tier}, but {other} runs under {found} on the same queue",
        "Stop that worker, or start this judge with the same --isolation.",
    )
