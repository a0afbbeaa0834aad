"""Lua scripts that change the queue in Redis. Each script is one atomic step.

`tasks` describes the keys and builds the commands that run the scripts. Each command contains its whole script (EVAL),
so that nobody has to load scripts into a restarted Redis. The first 16 characters of a program's state are the
fingerprint of the request.

The docstring of each script lists the script's KEYS and ARGV in order.
"""

from __future__ import annotations

MAKE_GROUPS = """
for _, stream in ipairs(KEYS) do
  local reply = redis.pcall('XGROUP', 'CREATE', stream, ARGV[1], '0', 'MKSTREAM')
  if reply.err and not string.find(reply.err, 'BUSYGROUP') then return reply end
end
"""
"""Creates streams with a consumer group. Does not change streams that already have the consumer group.

KEYS: the streams. ARGV: the name of the consumer group.
"""

_VISIBLE_STATE = """
local function visible_state(state, fingerprint)
  if string.sub(state, 1, 16) == fingerprint or string.sub(state, 1, 16) == ARGV[5] then
    return string.sub(state, 17)
  end
  return ARGV[4]
end
"""
"""Lua function that returns a state without its fingerprint, or REUSED if the state's fingerprint is not
`fingerprint`."""

_ENQUEUE = """
local earlier = {}
for i = 2, #KEYS do
  local id, fingerprint, body = ARGV[3 * i], ARGV[3 * i + 1], ARGV[3 * i + 2]
  local state = redis.call('GET', KEYS[i])
  local visible = state and visible_state(state, fingerprint)
  if visible and visible ~= ARGV[3] then
    table.insert(earlier, id)
    table.insert(earlier, visible)
  else
    local entry = redis.call('XADD', KEYS[1], '*', 'id', id, 'body', body, 'at', ARGV[1])
    redis.call('SET', KEYS[i], fingerprint .. '@' .. KEYS[1] .. ' ' .. entry, 'EX', ARGV[2])
  end
end
return earlier
"""

ENQUEUE = _VISIBLE_STATE + _ENQUEUE
"""Queues programs, except those that are already queued, running or done. A cancelled program with the same fingerprint
is queued again.

KEYS: the stream, then the key of each program's state.
ARGV: the current time, seconds after which states expire, CANCELLED, REUSED, NO_FINGERPRINT, then id, fingerprint and
body of each program.
Returns a list with two entries for each program that was not queued: the program's id, and its state without the
fingerprint. The state is REUSED if an earlier request with the same id has a different fingerprint.
"""

ENQUEUE_IF_WORKER_ALIVE = (
    _VISIBLE_STATE
    + """
if redis.call('HEXISTS', ARGV[9], ARGV[10]) == 0 then
  local state = redis.call('GET', KEYS[2])
  local visible = state and visible_state(state, ARGV[7])
  return {ARGV[6], visible and visible ~= ARGV[3] and visible or ARGV[11]}
end
"""
    + _ENQUEUE
)
"""Queues one cell if its worker is alive.

KEYS: the KEYS of ENQUEUE for one program.
ARGV: the ARGV of ENQUEUE for one program, then the Redis hash of workers, the name of the cell's worker, and the result
that the cell gets if its worker is dead.
Returns the same as ENQUEUE.
"""

COMMIT = """
local entries, outcomes, notices = {}, {}, {}
for i = 4, #KEYS, 2 do
  local state, stream, at = KEYS[i], KEYS[i + 1], 3 * i - 6
  local entry, id, text = ARGV[at], ARGV[at + 1], ARGV[at + 2]
  entries[stream] = entries[stream] or {}
  table.insert(entries[stream], entry)
  local earlier = redis.call('GET', state)
  if not earlier or string.sub(earlier, 17) == '@' .. stream .. ' ' .. entry then
    redis.call('SET', state, (earlier and string.sub(earlier, 1, 16) or ARGV[5]) .. text, 'EX', ARGV[2])
    local inline = #text <= tonumber(ARGV[3]) and text or ''
    table.insert(notices, table.concat({id, ARGV[at + 4], ARGV[at + 5], inline}, ' '))
    outcomes[ARGV[at + 3]] = (outcomes[ARGV[at + 3]] or 0) + 1
  end
end
for stream, finished in pairs(entries) do
  redis.call('XACK', stream, ARGV[1], unpack(finished))
  redis.call('XDEL', stream, unpack(finished))
end
for outcome, count in pairs(outcomes) do redis.call('HINCRBY', KEYS[1], outcome, count) end
if #notices > 0 then redis.call('PUBLISH', ARGV[4], table.concat(notices, '\\n')) end
local unfinished = redis.call('XLEN', KEYS[2])
return {'stored', #notices, 'unfinished', unfinished, 'workers', redis.call('HLEN', KEYS[3])}
"""
"""Stores results, publishes a notice of each result, and acknowledges the tasks that produced the results.

KEYS: the Redis keys OUTCOMES, TASKS and WORKERS of `tasks`, then for each result the state's key and the task's stream.
ARGV: the consumer group, seconds after which results expire, maximum length of a result that is published with its
notice, the channel `done`, NO_FINGERPRINT, then entry, id, result, outcome, queue_s and wall_s of each result.
Returns a list in which names and numbers alternate. `stored` is the number of results that were stored. A result is
dropped instead of stored if its task was cancelled or already has a result. `unfinished` is the number of programs in
the queue, and `workers` is the number of workers.
"""

STATES = """
local states = {}
for i, state in ipairs(KEYS) do states[i] = redis.call('GETRANGE', state, 16, 15 + ARGV[1]) end
return states
"""
"""Reads the states of programs.

KEYS: the states' keys. ARGV: maximum number of characters to read from each state.
Returns the states without their fingerprints. A state that does not exist is returned as an empty string.
"""

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
"""Cancels a program that is queued or running. A cell that was already delivered to its worker is not cancelled.

KEYS: the key of the program's state. ARGV: CANCELLED, seconds after which the cancelled state expires, the consumer
group, and the prefix of all streams of cells.
Returns 1 if the program was cancelled, else 0.
"""

DELIVERED = """
for _, state in ipairs(KEYS) do redis.call('EXPIRE', state, ARGV[1]) end
"""
"""Sets the time after which results expire.

KEYS: the keys of the results. ARGV: seconds after which the results expire.
"""

DROP_RESULTS = """
for _, state in ipairs(KEYS) do
  if redis.call('GETRANGE', state, 16, 16) == '{' then redis.call('DEL', state) end
end
"""
"""Deletes results. States of unfinished programs are not deleted.

KEYS: the keys of the results.
"""

FORGET = """
if string.sub(redis.call('GET', KEYS[1]) or '', 17) ~= ARGV[1] then return 0 end
return redis.call('DEL', KEYS[1])
"""
"""Deletes a program's result if it still equals the expected result.

KEYS: the key of the program's state. ARGV: the expected result.
Returns 1 if the result was deleted, else 0.
"""

CLAIM = """
for i = 5, #ARGV do
  redis.call('XACK', KEYS[2], ARGV[1], ARGV[i])
  redis.call('XDEL', KEYS[2], ARGV[i])
end
local claimed = {}
for _, item in ipairs(redis.call('XPENDING', KEYS[1], ARGV[1], '-', '+', ARGV[4], ARGV[2])) do
  local entry = redis.call('XRANGE', KEYS[1], item[1], item[1])[1]
  if entry then
    redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[3], 0, item[1], 'JUSTID')
    local fields = entry[2]
    table.insert(fields, 'tries')
    table.insert(fields, redis.call('HGET', KEYS[3], item[1]) or '0')
    table.insert(claimed, entry)
  else
    redis.call('XACK', KEYS[1], ARGV[1], item[1])
  end
end
return {{KEYS[1], claimed}}
"""
"""Moves the oldest tasks from one consumer to another.

KEYS: the Redis keys TASKS, RETURNED and TRIES of `tasks`.
ARGV: the consumer group, the consumer that has the tasks, the consumer that gets the tasks, maximum number of tasks,
then the entries of `returned` to delete.
Returns the moved tasks in the format of XREADGROUP, with the additional field `tries`.
"""

_RETURN = """
local function return_task(entry)
  local task = redis.call('XRANGE', KEYS[1], entry, entry)[1]
  local state = task and redis.call('GET', ARGV[2] .. task[2][2])
  if not task or state and string.sub(state, 17) ~= '@' .. KEYS[1] .. ' ' .. entry then
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
"""Returns a worker's task to the queue.

KEYS: the Redis keys TASKS and RETURNED of `tasks`.
ARGV: the consumer group, the prefix of all states' keys, the consumer of returned tasks, the worker that returns the
task, the task's entry.
Returns 1 if the task was returned, or 0 if the task was cancelled or no longer belongs to the worker.
"""

REMOVE_WORKER = (
    _RETURN
    + """
local moved = 0
local function pending(stream)
  local items = redis.pcall('XPENDING', stream, ARGV[1], '-', '+', 10000, ARGV[4])
  return items.err and {} or items
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
"""Removes a dead worker. The worker's tasks return to the queue, and the worker's cells get the outcome `lost`.

KEYS: the Redis keys TASKS, RETURNED and WORKERS of `tasks`, the stream of the worker's cells, then the Redis keys
OUTCOMES and TRIES of `tasks`.
ARGV: the consumer group, the prefix of all states' keys, the consumer of returned tasks, name of the dead worker, error
message for the worker's cells, seconds after which results expire, the channel `done`, seconds after which tries
expire, NO_FINGERPRINT.
Returns the number of tasks that returned to the queue.
"""
