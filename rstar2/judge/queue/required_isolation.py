"""The isolation tier that a judge requires of all workers of its queue, kept in Redis.

A judge writes its requirement to Redis again and again while it lives, so that the one of a killed judge expires.
A worker registers only if its tier satisfies every requirement there, and a judge starts only if the tier of every
living worker satisfies its own. Each checks and writes in one atomic step, so that neither misses the other.
"""

from __future__ import annotations

import json
from typing import Any

from rstar2.judge.queue.liveness import WRITE_HEARTBEAT
from rstar2.judge.queue.redis_connection import Command
from rstar2.judge.queue.tasks import PREFIX, WORKERS
from rstar2.judge.schema import ISOLATION_ORDER, Isolation

REQUIREMENTS = f"{PREFIX}:required_isolation"
"""Hash: judge → {tier, till} as JSON; `till` in the Unix seconds of Redis."""
RENEW_S = 5.0
KEPT_S = 15
SILENT_S = 10
"""A worker whose last heartbeat is older is not asked for its tier."""

_REGISTER = (
    WRITE_HEARTBEAT
    + """
local now = tonumber(redis.call('TIME')[1])
local known = redis.call('HGETALL', KEYS[1])
for i = 1, #known, 2 do
  local requirement = cjson.decode(known[i + 1])
  if requirement.till < now then
    redis.call('HDEL', KEYS[1], known[i])
  elseif string.find(ARGV[1], requirement.tier, 1, true) then
    return requirement.tier
  end
end
write_heartbeat(KEYS[2], ARGV[2], ARGV[3])
return ''
"""
)
"""KEYS requirements, workers. ARGV tiers stronger than the worker's, its name, its heartbeat. → '', or the tier
that is required."""

_REQUIRE = """
local now = tonumber(redis.call('TIME')[1])
local workers = redis.call('HGETALL', KEYS[2])
for i = 1, #workers, 2 do
  local state = cjson.decode(workers[i + 1])
  if state.at > now - tonumber(ARGV[5]) and string.find(ARGV[1], state.isolation, 1, true) then
    return workers[i] .. ' runs under ' .. state.isolation
  end
end
redis.call('HSET', KEYS[1], ARGV[2], cjson.encode({tier = ARGV[3], till = now + tonumber(ARGV[4])}))
return ''
"""
"""KEYS requirements, workers. ARGV tiers weaker than the judge's, its name, its tier, seconds kept, seconds after
which a silent worker does not count. → '', or which worker is too weak."""


def register(worker: str, heartbeat: dict[str, Any]) -> Command:
    """Writes a worker's first heartbeat, unless a judge of the queue requires a stronger tier."""
    stronger = " ".join(ISOLATION_ORDER[ISOLATION_ORDER.index(heartbeat["isolation"]) + 1 :])
    return ("EVAL", _REGISTER, 2, REQUIREMENTS, WORKERS, stronger, worker, json.dumps(heartbeat))


def require(judge: str, tier: Isolation) -> Command:
    """Writes what a judge requires, unless some worker of the queue is weaker."""
    weaker = " ".join(ISOLATION_ORDER[: ISOLATION_ORDER.index(tier)])
    return ("EVAL", _REQUIRE, 2, REQUIREMENTS, WORKERS, weaker, judge, tier, KEPT_S, SILENT_S)
