-- Set which events are kept from now on, whether events are published, and whether some are counted.
--
-- Events that are kept already stay, within the new bounds; what was counted in the history of the queue
-- stays until it expires.
--
-- Keys: events
-- Arguments:
--   prefix   text     the queue's name
--   now_ms   integer  the time; empty: the server's time
--   count    integer  about how many to keep; 0: any number; empty: as before
--   age_ms   integer  how long to keep each; 0: without end; empty: as before;
--       both 0: keep none, and drop all
--   publish  integer  1: publish events, 0: do not; empty: as before
--   secret   text     hexadecimal digits with which events are sealed, if none are published yet
--   rollup   integer  1: count events, 0: do not; empty: as before
-- Reply: the number of the last event so far; -1: none are kept, published or counted.
-- Cost: O(1), plus the cost of dropping.
-- Limits: none.
-- Uses: publish_live (live), newest (newest)

local keep_key = prefix .. ':events:keep'
redis.call('XLEN', events)
local before = redis.call('HMGET', keep_key, 'last', 'count', 'age_ms', 'live', 'rollup')
local number, age = count or tonumber(before[2] or 0), age_ms or tonumber(before[3] or 0)
local was = before[4] or ''
local counts = rollup or (before[5] == '1' and 1) or 0

-- Sharded, so that only one node of a cluster has work, if the server knows that and permits it.
local mode = publish and '' or was
if publish == 1 then
  mode = type(redis.pcall('SPUBLISH', prefix .. ':live', '')) == 'number' and 'sharded' or 'plain'
  mode = mode .. ' ' .. (string.match(was, ' (%x+)$') or secret)
elseif publish then
  publish_live(prefix, was, '{"off":true}')
end
if number == 0 and age == 0 then
  redis.call('UNLINK', events)
  if mode == '' and counts == 0 then
    redis.call('UNLINK', keep_key)
    return -1
  end
end
-- In microseconds: no event takes less, so numbers also grow after a time in which
-- there were none, however short.
local time = now_ms or redis.call('TIME')
local begin = now_ms and now_ms * 1000 or time[1] * 1000000 + time[2]
local last = before[1] or string.format('%.0f', begin)
if age == 0 then redis.call('PERSIST', events) end
redis.call('HSET', keep_key, 'last', last, 'count', number, 'age_ms', age, 'live', mode)
if counts == 1 then
  redis.call('HSET', keep_key, 'rollup', '1')
else
  redis.call('HDEL', keep_key, 'rollup')
end
return tonumber(newest())
