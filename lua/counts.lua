-- Return how many items are in each state at one moment.
--
-- Ids on their way to a waiting process count as waiting.
--
-- Keys: queue, deadlines, scheduled, sessions, dead
-- Arguments:
--   prefix  text  the queue's name
-- Reply: the numbers of items that are waiting, leased (expired ones included, and leases of foreign clients that are watched) and scheduled, and of dead
--   letters.
-- Cost: O(1), plus O(1) per waiting process.
-- Limits: the inboxes of the first 1,000 sessions are counted.

local waiting = redis.call('LLEN', queue)
  + redis.call('LLEN', prefix .. ':held')
  + redis.call('ZCARD', prefix .. ':lanes')
for _, session in ipairs(redis.call('ZRANGE', sessions, 0, 999)) do
  waiting = waiting + redis.call('LLEN', prefix .. ':inbox:' .. session)
end
local leased = redis.call('ZCARD', deadlines)
return { waiting, leased, redis.call('ZCARD', scheduled), redis.call('ZCARD', dead) }
