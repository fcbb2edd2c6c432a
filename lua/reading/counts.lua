-- Return how many items are in each state at one moment.
--
-- Ids on their way to a waiting process count as waiting.
--
-- Keys: queue, deadlines, scheduled, sessions, dead
-- Arguments:
--   prefix  text  the queue's name
-- Reply: the numbers of items that are waiting, leased (expired ones included, and leases of foreign clients
--   that are watched) and scheduled, and of dead letters.
-- Cost: O(1), plus O(1) per waiting process.
-- Limits: the inboxes of the first 1,000 sessions are counted.
-- Uses: count_waiting (count)

local leased = redis.call('ZCARD', deadlines)
return { count_waiting(), leased, redis.call('ZCARD', scheduled), redis.call('ZCARD', dead) }
