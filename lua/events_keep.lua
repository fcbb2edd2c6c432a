-- Say which events are kept, from now on; what was kept before stays, within the new bounds.
--
-- Keys: events
-- Arguments:
--   prefix  text     the queue's name
--   now_ms  integer  the time, or empty for the server's
--   count   integer  how many, roughly; 0: as many as there are
--   age_ms  integer  for how long; 0: without end; both 0: keep none, and drop what was kept
-- Reply: the number of the last event so far; -1: none are kept.
-- Cost: O(1), but for what is dropped.
-- Limits: none.

local keep_key = prefix .. ':events:keep'
redis.call('XLEN', events)
if count == 0 and age_ms == 0 then
  redis.call('UNLINK', keep_key, events)
  return -1
end
-- Numbers grow even if keeping was switched off in between: a thousand events in a ms would be too many.
redis.call('HSETNX', keep_key, 'last', string.format('%.0f', now * 1000))
redis.call('HSET', keep_key, 'count', count, 'age_ms', age_ms)
if age_ms == 0 then
  redis.call('PERSIST', events)
end
return tonumber(newest())
