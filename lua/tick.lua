-- Add the items of schedules that are due, and set when each is due next.
--
-- Whoever calls has read what is due, and reckoned from it. A row counts only if all is as it was read, so
-- any number of processes may tick at once: each tick is added by exactly one.
--
-- Keys: queue, processing, gone, deadlines, scheduled, ledger, schedules, ticks, events
-- Arguments:
--   prefix     text     the queue's name
--   now_ms     integer  the time, or empty for the server's
--   max_bytes  integer  add no more data than this (the first item is added in any case)
--   rows       rest     name, definition as read, due time as read, id of the item (empty: none is added), next due time, …
-- Reply: a list, an entry per row: 1 its item was added; 2 none was, as it has none or its id is there; 0
--   something is not as it was read, and nothing was done; -2 not looked at, nor any after it, for want of room.
-- Cost: O(log n) per row. The data is copied.
-- Limits: at most 1,000 rows and `max_bytes` of data a call.
-- Needs: check

local function data_of_schedule(name)
  return prefix .. ':schedule:' .. name
end

redis.call('HLEN', schedules)
redis.call('ZCARD', ticks)
local sizes = {}
for at = rows + 1, #ARGV, 5 do
  -- Also raises now, before anything is written, if it is of another type.
  sizes[at] = redis.call('STRLEN', data_of_schedule(ARGV[at]))
end

-- Whether an item was added under this id; one that is there stays as it is.
local function add(name, id, size)
  if size == 0 then
    return redis.call('SETNX', data_key(id), '') == 1
  end
  return redis.call('COPY', data_of_schedule(name), data_key(id)) == 1
end

-- Whether the schedule is as it was read, and due.
local function is_as_read(name, definition, due)
  local stored = redis.call('HGET', schedules, name)
  if not stored then
    redis.call('ZREM', ticks, name) -- a time that stands for nothing
  end
  local score = tonumber(redis.call('ZSCORE', ticks, name) or '')
  return stored == definition and score == due and due <= now
end

local answers, added, size_of, bytes = {}, {}, {}, 0
for at = rows + 1, #ARGV, 5 do
  local name, id, answer = ARGV[at], ARGV[at + 3], 0
  local room = #added == 0 or id == '' or bytes + sizes[at] <= max_bytes
  if not room or answers[#answers] == -2 then
    answer = -2
  elseif is_as_read(name, ARGV[at + 1], tonumber(ARGV[at + 2])) then
    redis.call('ZADD', ticks, ARGV[at + 4], name)
    answer = 2
    if id ~= '' and add(name, id, sizes[at]) then
      answer = 1
      bytes = bytes + sizes[at]
      added[#added + 1], size_of[id] = id, sizes[at]
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
