-- Take a place of a limit by its name, wait for one, or renew it.
--
-- Keys: queue
-- Arguments:
--   prefix    text     the queue's name
--   now_ms    integer  the time; empty: the server's time
--   hold_name text     the limit's name
--   ticket    text     who takes it, see `lanes/lib/holds`
--   for_ms    integer  for how long, unless it is renewed; at most an hour
--   renews    flag     only renew it
-- Reply: 1 it has a place, 0 it waits, -1 it has none that could be renewed, -2 the name has no limits;
--   and, if it waits, in how many ms to ask again, unless the session is sent `turn <ticket>` before.
-- Cost: O(log n).
-- Limits: 500 holders whose time has ended.
-- Uses: drop_ended_holds, give_places, holders_of_name, line_of_name (holds), read_clock (read_clock)

redis.call('LLEN', queue) -- a cluster finds the node by a key of the script
drop_ended_holds(hold_name)
local holders, line = holders_of_name(hold_name), line_of_name(hold_name)
local function hold_on()
  redis.call('ZADD', holders, read_clock() + for_ms, ticket)
  if redis.call('PTTL', holders) < for_ms then redis.call('PEXPIRE', holders, for_ms) end
  return { 1, 0 }
end
if redis.call('ZSCORE', holders, ticket) then return hold_on() end
if renews then return { -1, 0 } end
local last = tonumber(redis.call('ZRANGE', line, -1, -1, 'WITHSCORES')[2] or 0)
redis.call('ZADD', line, 'NX', math.max(read_clock(), last + 0.001), ticket) -- behind all that wait
redis.call('PEXPIRE', line, 60000) -- whoever waits asks again sooner
local has_limits, next_at = give_places(hold_name, ticket, for_ms)
if not has_limits then
  redis.call('ZREM', line, ticket)
  return { -2, 0 }
elseif redis.call('ZSCORE', holders, ticket) then
  return { 1, 0 }
end
-- The first few ask when time may give a place; the others are sent their turn. All ask while a place would
-- still be kept for them of which they were not told.
local rank = redis.call('ZRANK', line, ticket) or 0
local wait = next_at and rank < 8 and math.max(1, math.ceil(next_at - read_clock())) or 4000
return { 0, math.min(wait, 4000) }
