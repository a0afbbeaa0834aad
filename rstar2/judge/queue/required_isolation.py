"""The tier a judge promises its clients, kept with its queue so that no weaker worker works for it.

A judge notes its tier in Redis again and again while it lives, so that what a killed one required lapses. A
worker joins the queue only if it keeps every promise noted there, and a judge starts only if every worker
that lives keeps its own: each looks and notes in one step, so that neither misses the other.
"""

from __future__ import annotations

import json
from typing import Any

from rstar2.judge.queue.tasks import PREFIX, WORKERS, Eval
from rstar2.judge.sandbox.tiers import ORDER
from rstar2.judge.schema import Isolation

REQUIREMENTS = f"{PREFIX}:promises"
"""Hash: judge → {tier, till} as JSON; `till` in the Unix seconds of Redis."""
RENEW_S = 5.0
KEPT_S = 15
SILENT_S = 10
"""A worker that has not been heard of for so long is not asked what it keeps."""

_JOIN = """
local now = tonumber(redis.call('TIME')[1])
local known = redis.call('HGETALL', KEYS[1])
for i = 1, #known, 2 do
  local promise = cjson.decode(known[i + 1])
  if promise.till < now then
    redis.call('HDEL', KEYS[1], known[i])
  elseif string.find(ARGV[1], promise.tier, 1, true) then
    return promise.tier
  end
end
redis.call('HSET', KEYS[2], ARGV[2], ARGV[3])
return ''
"""
"""KEYS promises, workers. ARGV tiers the worker does not reach, its name, its heartbeat. → '', or the tier
that it had to reach."""

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
"""KEYS promises, workers. ARGV tiers below the judge's, its name, its tier, seconds kept, seconds after which
a silent worker does not count. → '', or what is wrong with some worker."""


def register_args(worker: str, state: dict[str, Any]) -> Eval:
    """Notes a worker's first heartbeat, unless it is weaker than what some judge of the queue promises."""
    beyond = " ".join(ORDER[ORDER.index(state["isolation"]) + 1 :])
    return (_JOIN, 2, REQUIREMENTS, WORKERS, beyond, worker, json.dumps(state))


def require_args(judge: str, tier: Isolation) -> Eval:
    """Notes what a judge promises, unless some worker of the queue is weaker."""
    below = " ".join(ORDER[: ORDER.index(tier)])
    return (_REQUIRE, 2, REQUIREMENTS, WORKERS, below, judge, tier, KEPT_S, SILENT_S)
