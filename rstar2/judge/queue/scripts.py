"""The Lua scripts that change the queue in Redis, each in one atomic step.

`tasks` says what the keys hold, and builds the commands that run these scripts. They are sent whole with EVAL, so
that a Redis that was restarted needs no loading of scripts.
"""

from __future__ import annotations

MAKE_GROUPS = """
for _, stream in ipairs(KEYS) do
  local made = redis.pcall('XGROUP', 'CREATE', stream, ARGV[1], '0', 'MKSTREAM')
  if made.err and not string.find(made.err, 'BUSYGROUP') then return made end
end
"""
"""KEYS streams. ARGV group."""

ENQUEUE = """
local known = {}
for i = 2, #KEYS do
  local id, body = ARGV[2 * i], ARGV[2 * i + 1]
  local state = redis.call('GET', KEYS[i])
  if state and state ~= ARGV[3] then
    table.insert(known, id)
    table.insert(known, state)
  else
    local entry = redis.call('XADD', KEYS[1], '*', 'id', id, 'body', body, 'tries', '0', 'at', ARGV[1])
    redis.call('SET', KEYS[i], '@' .. KEYS[1] .. ' ' .. entry, 'EX', ARGV[2])
  end
end
return known
"""
"""KEYS stream, states. ARGV now, ttl, CANCELLED, then id and body of each.
→ id and state, by turns, of those that had a state already and were not queued."""

ENQUEUE_IF_WORKER_ALIVE = (
    """
if redis.call('HEXISTS', ARGV[6], ARGV[7]) == 0 then
  local state = redis.call('GET', KEYS[2])
  return {ARGV[4], state and state ~= ARGV[3] and state or ARGV[8]}
end
"""
    + ENQUEUE
)
"""KEYS and ARGV of ENQUEUE with one item, and after them ARGV workers, the only worker that can run it, the
result if that worker is dead. → see ENQUEUE."""

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
local unfinished = redis.call('XLEN', KEYS[2]) + redis.call('XLEN', KEYS[3])
return {'stored', #notices, 'unfinished', unfinished, 'workers', redis.call('HLEN', KEYS[4])}
"""
"""KEYS outcomes, tasks, returned, workers, then state and stream of each. ARGV group, ttl, the longest result
that is published whole, done, then entry, id, result, outcome, queue_s, wall_s of each.
→ names and numbers by turns: `stored`, how many of these results count (the others had one already, or were
cancelled); `unfinished`, how many programs the queue holds; `workers`, how many share them."""

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
"""KEYS state. ARGV CANCELLED, ttl, group, prefix of streams of cells. → 1 if it was queued, or ran and was no
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

_MOVE = """
local function move(stream, entry, tries)
  local found = redis.call('XRANGE', stream, entry, entry)
  redis.call('XACK', stream, ARGV[1], entry)
  redis.call('XDEL', stream, entry)
  if not found[1] then return 0 end
  local f = found[1][2]
  local key = ARGV[2] .. f[2]
  local state = redis.call('GET', key)
  if state and string.sub(state, 1, 1) ~= '@' then return 0 end
  tries = tonumber(f[6]) + tries
  local moved = redis.call('XADD', KEYS[2], '*', 'id', f[2], 'body', f[4], 'tries', tries, 'at', f[8])
  redis.call('SET', key, '@' .. KEYS[2] .. ' ' .. moved, 'EX', ARGV[3])
  return 1
end
"""

RETURN_TASK = _MOVE + "return move(KEYS[1], ARGV[4], 0)"
"""KEYS stream, returned. ARGV group, prefix of states, ttl, entry. → 1, or 0 if it was cancelled."""

REMOVE_WORKER = (
    _MOVE
    + """
local moved = 0
for _, stream in ipairs({KEYS[1], KEYS[2]}) do
  local pending = redis.pcall('XPENDING', stream, ARGV[1], '-', '+', 10000, ARGV[4])
  if not pending.err then
    for _, item in ipairs(pending) do moved = moved + move(stream, item[1], 1) end
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
queued, name of a dead worker, the error message for its cells, ttl of results, done.
→ how many tasks were moved to `returned`."""
