-- Say under which run a job of a name goes on: the one that is open, or a new one.
--
-- `add_once` goes by the run and not by the job's name, so that the name can be used again when the job has
-- ended, while a task of the run that has ended adds nothing any more. Called again, it answers the same.
--
-- Keys: queue
-- Arguments:
--   prefix   text     the queue's name
--   job      text     the job's name
--   run      text     the new run, if none is open: a text unlike any other
--   keep_ms  integer  for how long after the last call the name is known
-- Reply: the run.
-- Cost: O(1).
-- Limits: none.

redis.call('LLEN', queue) -- a script has a key, by which a cluster finds its node
local pointer = prefix .. ':once:' .. job .. ':run'
local open = redis.call('GET', pointer) or run
redis.call('SET', pointer, open, 'PX', keep_ms)
return open
