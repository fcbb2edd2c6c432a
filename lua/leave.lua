-- What is on its way to a session goes back to the front: it waits no more, or has no time to look.
--
-- Keys: queue, inbox, sessions
-- Arguments:
--   prefix   text  the queue's name
--   session  text  whose inbox
--   stays    flag  1: it stays on the list, as a move to it may still be under way
-- Reply: how many ids went back.
-- Cost: O(1) per id. An inbox holds one or two.
-- Limits: at most 1,000 ids a call; the session stays registered while there are more.

-- All are read before anything is written, so that a key of a wrong type loses no id.
redis.call('LLEN', queue)
redis.call('LLEN', inbox)
redis.call('ZCARD', sessions)

local back = empty_inbox(inbox, 1000)
if back < 1000 and not stays then
  redis.call('ZREM', sessions, session)
end
return back
