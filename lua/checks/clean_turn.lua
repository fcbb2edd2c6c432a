-- Take the turn to clean a queue, so that it costs the same however many clients would.
--
-- The client that cleaned last continues. Another one takes over when that has missed its turns for two
-- intervals, or cleans less often than it does.
--
-- Keys: queue
-- Arguments:
--   prefix    text     the queue's name
--   session   text     the client
--   deep      flag     1: a deep clean; 0: a light one
--   every_ms  integer  the client cleans once in so many ms, on average
-- Reply: 1: it is to clean now; 0: another client does.
-- Cost: O(1).
-- Limits: none.
-- Uses: begin_writes (begin_writes)

redis.call('LLEN', queue) -- a cluster finds the node by a key of the script
local key = prefix .. (deep and ':deep_cleaner' or ':cleaner')
local left = redis.call('PTTL', key)
if left >= 0 and left <= 2 * every_ms and redis.call('GET', key) ~= session then return 0 end
begin_writes() -- cleaning frees memory
redis.call('SET', key, session, 'PX', 2 * every_ms)
return 1
