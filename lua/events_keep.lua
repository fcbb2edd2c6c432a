-- Set which events are kept from now on. Events that are kept already stay, within the new bounds.
--
-- Keys: events
-- Arguments:
--   prefix  text     the queue's name
--   now_ms  integer  the time; empty: the server's time
--   count   integer  about how many to keep; 0: any number
--   age_ms  integer  how long to keep each; 0: without end; both 0: keep none, and drop those that are kept
-- Reply: the number of the last event so far; -1: none are kept.
-- Cost: O(1), plus the cost of dropping.
-- Limits: none.

local keep_key = prefix .. ':events:keep'
redis.call('XLEN', events)
if count == 0 and age_ms == 0 then
  redis.call('UNLINK', keep_key, events)
  return -1
end
-- In microseconds: no event takes less, so numbers also grow after a time in which none were kept, however short.
local time = now_ms or redis.call('TIME')
local begin = now_ms and now_ms * 1000 or time[1] * 1000000 + time[2]
local last = redis.call('HGET', keep_key, 'last') or string.format('%.0f', begin)
if age_ms == 0 then
  redis.call('PERSIST', events)
end
redis.call('HSET', keep_key, 'last', last, 'count', count, 'age_ms', age_ms)
return tonumber(newest())
