"""The Lua scripts that change the queue in Redis, each in one atomic step.

`tasks` says what the keys hold, and builds the commands that run these scripts. They are sent whole with EVAL, so
that a Redis that was restarted needs no loading of scripts. The first 16 characters of a state are the fingerprint
of what was asked for under its id.
"""

from __future__ import annotations

MAKE_GROUPS = """
for _, stream in ipairs(KEYS) do
  local made = redis.pcall('XGROUP', 'CREATE', stream, ARGV[1], '0', 'MKSTREAM')
  if made.err and not string.find(made.err, 'BUSYGROUP') then return made end
end
"""
"""KEYS streams. ARGV group."""

_KNOWN = """
local function known(state, fingerprint)
  if string.sub(state, 1, 16) == fingerprint or string.sub(state, 1, 16) == ARGV[5] then
    return string.sub(state, 17)
  end
  return ARGV[4]
end
"""

_ENQUEUE = """
local found = {}
for i = 2, #KEYS do
  local id, fingerprint, body = ARGV[3 * i], ARGV[3 * i + 1], ARGV[3 * i + 2]
  local state = redis.call('GET', KEYS[i])
  local told = state and known(state, fingerprint)
  if told and told ~= ARGV[3] then
    table.insert(found, id)
    table.insert(found, told)
  else
    local entry = redis.call('XADD', KEYS[1], '*', 'id', id, 'body', body, 'at', ARGV[1])
    redis.call('SET', KEYS[i], fingerprint .. '@' .. KEYS[1] .. ' ' .. entry, 'EX', ARGV[2])
  end
end
return found
"""

ENQUEUE = _KNOWN + _ENQUEUE
"""KEYS stream, states. ARGV now, ttl, CANCELLED, REUSED, NO_FINGERPRINT, then id, fingerprint and body of each.
→ id and state without fingerprint, by turns, of those that had a state already and were not queued; REUSED in
place of the state where it has another fingerprint. What was cancelled is queued again if it is the same."""

ENQUEUE_IF_WORKER_ALIVE = (
    _KNOWN
    + """
if redis.call('HEXISTS', ARGV[9], ARGV[10]) == 0 then
  local state = redis.call('GET', KEYS[2])
  local told = state and known(state, ARGV[7])
  return {ARGV[6], told and told ~= ARGV[3] and told or ARGV[11]}
end
"""
    + _ENQUEUE
)
"""KEYS and ARGV of ENQUEUE with one item, and after them ARGV workers, the only worker that can run it, the
result if that worker is dead. → see ENQUEUE."""

COMMIT = """
local entries, outcomes, notices = {}, {}, {}
for i = 4, #KEYS, 2 do
  local state, stream, at = KEYS[i], KEYS[i + 1], 3 * i - 6
  local entry, id, text = ARGV[at], ARGV[at + 1], ARGV[at + 2]
  entries[stream] = entries[stream] or {}
  table.insert(entries[stream], entry)
  local before = redis.call('GET', state)
  if not before or string.sub(before, 17) == '@' .. stream .. ' ' .. entry then
    redis.call('SET', state, (before and string.sub(before, 1, 16) or ARGV[5]) .. text, 'EX', ARGV[2])
    local inline = #text <= tonumber(ARGV[3]) and text or ''
    table.insert(notices, table.concat({id, ARGV[at + 4], ARGV[at + 5], inline}, ' '))
    outcomes[ARGV[at + 3]] = (outcomes[ARGV[at + 3]] or 0) + 1
  end
end
for stream, done in pairs(entries) do
  redis.call('XACK', stream, ARGV[1], unpack(done))
  redis.call('XDEL', stream, unpack(done))
end
for outcome, count in pairs(outcomes) do redis.call('HINCRBY', KEYS[1], outcome, count) end
if #notices > 0 then redis.call('PUBLISH', ARGV[4], table.concat(notices, '\\n')) end
local unfinished = redis.call('XLEN', KEYS[2])
return {'stored', #notices, 'unfinished', unfinished, 'workers', redis.call('HLEN', KEYS[3])}
"""
"""KEYS outcomes, tasks, workers, then state and stream of each. ARGV group, ttl, the longest result that is
published whole, done, NO_FINGERPRINT, then entry, id, result, outcome, queue_s, wall_s of each.
→ names and numbers by turns: `stored`, how many of these results count (the others had one already, or were
cancelled, whatever was asked for under their ids since); `unfinished`, how many programs the queue holds; `workers`,
how many share them."""

STATES = """
local found = {}
for i, state in ipairs(KEYS) do found[i] = redis.call('GETRANGE', state, 16, 15 + ARGV[1]) end
return found
"""
"""KEYS states. ARGV how many characters of each at most. → them, without fingerprint; empty where there is none."""

CANCEL = """
local state = redis.call('GET', KEYS[1]) or ''
local stream, entry = string.match(string.sub(state, 17), '^@(%S+) (%S+)$')
if not stream then return 0 end
if string.sub(stream, 1, #ARGV[4]) == ARGV[4] then
  local delivered = redis.pcall('XPENDING', stream, ARGV[3], entry, entry, 1)
  if #delivered > 0 then return 0 end
end
redis.call('XDEL', stream, entry)
redis.call('SET', KEYS[1], string.sub(state, 1, 16) .. ARGV[1], 'EX', ARGV[2])
return 1
"""
"""KEYS state. ARGV CANCELLED, ttl, group, prefix of streams of cells. → 1 if it was queued, or ran and was no
cell."""

DELIVERED = """
for _, state in ipairs(KEYS) do redis.call('EXPIRE', state, ARGV[1]) end
"""
"""KEYS states. ARGV ttl."""

DROP_RESULTS = """
for _, state in ipairs(KEYS) do
  if redis.call('GETRANGE', state, 16, 16) == '{' then redis.call('DEL', state) end
end
"""
"""KEYS states. Those that are no results stay."""

FORGET = """
if string.sub(redis.call('GET', KEYS[1]) or '', 17) ~= ARGV[1] then return 0 end
return redis.call('DEL', KEYS[1])
"""
"""KEYS state. ARGV the result it must hold. → 1 if it was forgotten."""

CLAIM = """
for i = 5, #ARGV do
  redis.call('XACK', KEYS[2], ARGV[1], ARGV[i])
  redis.call('XDEL', KEYS[2], ARGV[i])
end
local found = {}
for _, item in ipairs(redis.call('XPENDING', KEYS[1], ARGV[1], '-', '+', ARGV[4], ARGV[2])) do
  local entry = redis.call('XRANGE', KEYS[1], item[1], item[1])[1]
  if entry then
    redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[3], 0, item[1], 'JUSTID')
    local fields = entry[2]
    table.insert(fields, 'tries')
    table.insert(fields, redis.call('HGET', KEYS[3], item[1]) or '0')
    table.insert(found, entry)
  else
    redis.call('XACK', KEYS[1], ARGV[1], item[1])
  end
end
return {{KEYS[1], found}}
"""
"""KEYS tasks, returned, tries. ARGV group, the consumer that has the tasks, the one that is to have them, how many
at most, then entries of `returned` that this answers. → the oldest of these tasks, as XREADGROUP replies, with the
field `tries` besides."""

_RETURN = """
local function return_task(entry)
  local found = redis.call('XRANGE', KEYS[1], entry, entry)[1]
  local state = found and redis.call('GET', ARGV[2] .. found[2][2])
  if not found or state and string.sub(state, 17) ~= '@' .. KEYS[1] .. ' ' .. entry then
    redis.call('XACK', KEYS[1], ARGV[1], entry)
    redis.call('XDEL', KEYS[1], entry)
    return 0
  end
  redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[3], 0, entry, 'JUSTID')
  redis.call('XADD', KEYS[2], '*', 'task', entry)
  return 1
end
"""

RETURN_TASK = (
    _RETURN
    + """
if #redis.call('XPENDING', KEYS[1], ARGV[1], ARGV[5], ARGV[5], 1, ARGV[4]) == 0 then return 0 end
return return_task(ARGV[5])
"""
)
"""KEYS tasks, returned. ARGV group, prefix of states, the consumer of returned tasks, the worker that returns the
task, its entry. → 1, or 0 if it was cancelled or is not that worker's any more."""

REMOVE_WORKER = (
    _RETURN
    + """
local moved = 0
local function pending(stream)
  local found = redis.pcall('XPENDING', stream, ARGV[1], '-', '+', 10000, ARGV[4])
  return found.err and {} or found
end
for _, item in ipairs(pending(KEYS[1])) do
  redis.call('HINCRBY', KEYS[6], item[1], 1)
  moved = moved + return_task(item[1])
end
redis.call('EXPIRE', KEYS[6], ARGV[8])
for _, item in ipairs(pending(KEYS[2])) do
  redis.call('XACK', KEYS[2], ARGV[1], item[1])
  redis.call('XDEL', KEYS[2], item[1])
  redis.call('XADD', KEYS[2], '*', 'task', '')
end
for _, stream in ipairs({KEYS[1], KEYS[2]}) do
  redis.pcall('XGROUP', 'DELCONSUMER', stream, ARGV[1], ARGV[4])
end
for _, entry in ipairs(redis.call('XRANGE', KEYS[4], '-', '+')) do
  local id = entry[2][2]
  local state = redis.call('GET', ARGV[2] .. id)
  local lost = cjson.encode({id = id, outcome = 'lost', stderr = ARGV[5], session_alive = false,
                             session_end = ARGV[5]})
  redis.call('SET', ARGV[2] .. id, (state and string.sub(state, 1, 16) or ARGV[9]) .. lost, 'EX', ARGV[6])
  redis.call('PUBLISH', ARGV[7], id .. ' 0 0 ')
  redis.call('HINCRBY', KEYS[5], 'lost', 1)
end
redis.call('DEL', KEYS[4])
redis.call('HDEL', KEYS[3], ARGV[4])
return moved
"""
)
"""KEYS tasks, returned, workers, the worker's cells, outcomes, tries. ARGV group, prefix of states, the consumer of
returned tasks, name of a dead worker, the error message for its cells, ttl of results, done, ttl of tries,
NO_FINGERPRINT. → how many tasks were returned."""
