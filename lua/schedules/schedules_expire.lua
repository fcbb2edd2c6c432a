-- Remove schedules that were declared, but not for a time, one step at a time. The
-- items that they have added stay.
--
-- Keys: schedules, ticks, declared
-- Arguments:
--   prefix   text     the queue's name
--   now_ms   integer  the time; empty: the server's time
--   cursor   text     "0" in the first call, then the cursor of the last reply
--   count    count    about how many declared schedules to look at
--   keep_ms  integer  for how long a schedule stays after the last declaration
-- Reply: the next cursor ("0": done), then the names of the schedules that were removed.
-- Cost: O(count), and O(log n) for each one that is removed.
-- Limits: at most 1,000 declared schedules a call.
-- Uses: now (clock)

redis.call('ZCARD', ticks)
redis.call('HLEN', schedules)
local page = redis.call('HSCAN', declared, cursor, 'COUNT', count)
local reply = { page[1] }
for i = 1, #page[2], 2 do
  local name, latest = page[2][i], 0
  for last in string.gmatch(page[2][i + 1], '%d+ (%d+) [^\n]*') do
    latest = math.max(latest, tonumber(last))
  end
  if now - latest > keep_ms then reply[#reply + 1] = name end
end
for i = 2, #reply do
  local name = reply[i]
  redis.call('HDEL', schedules, name)
  redis.call('UNLINK', prefix .. ':schedule:' .. name)
  redis.call('HDEL', declared, name)
  redis.call('ZREM', ticks, name) -- until then, `tick` finds what is left of an interrupted call
end
return reply
