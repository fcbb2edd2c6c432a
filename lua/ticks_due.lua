-- Tell which schedules are due, the longest due first, and when the next one will be. Nothing is changed.
--
-- Keys: schedules, ticks
-- Arguments:
--   now_ms  integer  the time, or empty for the server's
--   start   integer  how many of those that are due are passed over
--   count   integer  how many at most
-- Reply: the time in ms, ms until the next one falls due that is not due yet (-1: none), then for each: name,
--   due time in ms, definition (false: it has none).
-- Cost: O(log n + start + count).
-- Limits: at most 1,000 schedules a call.

local found = redis.call('ZRANGEBYSCORE', ticks, '-inf', now, 'WITHSCORES', 'LIMIT', start, count)
local from = string.format('(%.0f', now)
local later = redis.call('ZRANGEBYSCORE', ticks, from, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
redis.call('HLEN', schedules)
local reply = { now, later[2] and tonumber(later[2]) - now or -1 }
for i = 1, #found, 2 do
  local base = #reply
  reply[base + 1], reply[base + 2] = found[i], tonumber(found[i + 1])
  reply[base + 3] = redis.call('HGET', schedules, found[i])
end
return reply
