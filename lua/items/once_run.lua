-- Return the open run of the job of a name, or open a new one.
--
-- `add_once` is given the run and not the job's name. So the name can be used again when the job has ended,
-- and a late task of the ended run adds nothing. Repeating the call returns the same run.
--
-- Keys: queue
-- Arguments:
--   prefix   text     the queue's name
--   job      text     the job's name
--   run      text     the new run, if none is open: a unique text
--   keep_ms  integer  how long the name is known after the last call
-- Reply: the run.
-- Cost: O(1).
-- Limits: none.

redis.call('LLEN', queue) -- a cluster finds the node by a key of the script
local pointer = prefix .. ':once:' .. job .. ':run'
local open = redis.call('GET', pointer) or run
redis.call('SET', pointer, open, 'PX', keep_ms)
return open
