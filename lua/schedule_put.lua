-- Store a schedule under its name, or change it.
--
-- A definition is "<version> <catch-up policy> <when>". Only the caller understands <when>, so the caller
-- provides the first due time. It is needed only if <when> is new: call without it, and again with it if the
-- reply says so.
--
-- Keys: schedules, ticks
-- Arguments:
--   prefix      text     the queue's name
--   now_ms      integer  the time; empty: the server's time
--   schedule    text     its name
--   definition  text     its definition
--   due_ms      integer  its first due time in ms since 1970, or empty
--   data        text     the data of the items that it adds
-- Reply: the answer, the time in ms, 1 if a tick of the earlier definition is due (else 0). The answer is 1
--   stored, 0 it was stored already, -1 nothing was stored: call again with a due time.
-- Cost: O(log n) in the number of schedules.
-- Limits: none.

local data_of_schedule = prefix .. ':schedule:' .. schedule
local size = redis.call('STRLEN', data_of_schedule)
local before = redis.call('HGET', schedules, schedule)
local due = redis.call('ZSCORE', ticks, schedule)

local same_data = size == #data and (size == 0 or redis.call('GET', data_of_schedule) == data)
if due and before == definition and same_data then
  return { 0, now, 0 }
end
-- The other parts of a definition do not change when it is due.
local when = '^%S+ %S+ (.*)$'
if not (before and due and string.match(before, when) == string.match(definition, when)) then
  if not due_ms then
    return { -1, now, (due and tonumber(due) <= now) and 1 or 0 }
  end
  redis.call('ZADD', ticks, due_ms, schedule)
end
if #data > 0 then
  redis.call('SET', data_of_schedule, data)
else
  redis.call('UNLINK', data_of_schedule)
end
-- The definition comes last: a schedule without one adds nothing, and `tick` removes what is left of it.
redis.call('HSET', schedules, schedule, definition)
return { 1, now, 0 }
