-- Return the schedules that are due, the longest due first, and when the next will be due.
--
-- Keys: schedules, ticks
-- Arguments:
--   prefix  text     the queue's name
--   now_ms  integer  the time; empty: the server's time
--   start   integer  how many due schedules to skip
--   count   count    the maximum number to return
-- Reply: the time in ms, ms until the next schedule falls due that is not due yet (-1: none), then for each
--   due one: name, due time in ms, definition (false: it has none).
-- Cost: O(log n + start + count).
-- Limits: at most 1,000 schedules a call.
-- Uses: now (clock), append (lists)

local found = redis.call('ZRANGEBYSCORE', ticks, '-inf', now, 'WITHSCORES', 'LIMIT', start, count)
local from = string.format('(%.0f', now)
local later = redis.call('ZRANGEBYSCORE', ticks, from, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
redis.call('HLEN', schedules)
local reply = { now, later[2] and tonumber(later[2]) - now or -1 }
for i = 1, #found, 2 do
  append(reply, found[i], tonumber(found[i + 1]), redis.call('HGET', schedules, found[i]))
end
return reply
