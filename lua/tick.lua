-- Add the items of schedules that are due, and set when each schedule is due next.
--
-- The caller has read which schedules are due, and has calculated the rows. A row is applied only if the
-- schedule is still as it was read. So any number of processes may tick at once, and each tick is added by
-- exactly one of them.
--
-- Keys: queue, processing, gone, deadlines, scheduled, ledger, schedules, ticks, events
-- Arguments:
--   prefix     text     the queue's name
--   now_ms     integer  the time; empty: the server's time
--   max_bytes  integer  the maximum of data to add (the first item is always added)
--   rows       rest     name, definition as read, due time as read, id of the item (empty: add none), next due time, …
-- Reply: a list with an entry per row: 1 its item was added; 2 none was, as the row has no id or the id
--   exists; 0 the schedule is not as it was read, and nothing was done; -2 not checked, nor any after it,
--   because of `max_bytes`.
-- Cost: O(log n) per row. The data is copied.
-- Limits: at most 1,000 rows and `max_bytes` of data a call.
-- Needs: check

local function data_of_schedule(name)
  return prefix .. ':schedule:' .. name
end

redis.call('HLEN', schedules)
redis.call('ZCARD', ticks)
local sizes = {}
for row = rows + 1, #ARGV, 5 do
  -- This raises now, before anything is written, if the key has another type.
  sizes[row] = redis.call('STRLEN', data_of_schedule(ARGV[row]))
end

-- Add an item, unless its id exists; returns whether it was added.
local function add(name, id, size)
  if size == 0 then
    return redis.call('SETNX', data_key(id), '') == 1
  end
  return redis.call('COPY', data_of_schedule(name), data_key(id)) == 1
end

-- Return whether the schedule is as it was read, and due.
local function is_as_read(name, definition, due)
  local stored = redis.call('HGET', schedules, name)
  if not stored then
    redis.call('ZREM', ticks, name) -- it is not the time of a schedule
  end
  local score = tonumber(redis.call('ZSCORE', ticks, name) or '')
  return stored == definition and score == due and due <= now
end

local answers, added, size_of, bytes = {}, {}, {}, 0
for row = rows + 1, #ARGV, 5 do
  local name, id, answer = ARGV[row], ARGV[row + 3], 0
  local room = #added == 0 or id == '' or bytes + sizes[row] <= max_bytes
  if not room or answers[#answers] == -2 then
    answer = -2
  elseif is_as_read(name, ARGV[row + 1], tonumber(ARGV[row + 2])) then
    redis.call('ZADD', ticks, ARGV[row + 4], name)
    answer = 2
    if id ~= '' and add(name, id, sizes[row]) then
      answer = 1
      bytes = bytes + sizes[row]
      added[#added + 1], size_of[id] = id, sizes[row]
    end
  end
  answers[#answers + 1] = answer
end
begin_incarnation(added)
enter_waiting(added, false)
for _, id in ipairs(emitting and added or {}) do
  emit('added', id, { size = size_of[id] })
end
flush()
return answers
