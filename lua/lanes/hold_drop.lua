-- Give a place of a limit back, or wait for it no more.
--
-- Keys: queue
-- Arguments:
--   prefix    text     the queue's name
--   now_ms    integer  the time; empty: the server's time
--   hold_name text     the limit's name
--   ticket    text     who had it, see `lanes/lib/holds`
-- Reply: 1 it had a place, 0 it had none.
-- Cost: O(log n).
-- Limits: none.
-- Uses: drop_ended_holds, give_places, holders_of_name, line_of_name (holds)

redis.call('LLEN', queue) -- a cluster finds the node by a key of the script
redis.call('ZREM', line_of_name(hold_name), ticket)
local had = redis.call('ZREM', holders_of_name(hold_name), ticket)
drop_ended_holds(hold_name)
give_places(hold_name)
return had
