-- Return how many items wait for any worker, and whether there are limits or
-- pauses because of which they may.
--
-- Each worker asks this all the time, to judge its health. So ids on their way to one session do not count,
-- in contrast to `counts`: that would cost more the more workers there are.
--
-- Keys: queue
-- Arguments:
--   prefix  text  the queue's name
-- Reply: how many items wait, then 1 if the queue has limits or pauses, else 0.
-- Cost: O(1).
-- Limits: none.

local waiting = redis.call('LLEN', queue)
  + redis.call('LLEN', prefix .. ':held')
  + redis.call('ZCARD', prefix .. ':lanes')
return { waiting, redis.call('EXISTS', prefix .. ':control') }
