-- Return the ids in the inbox of a session to the front of the queue, and unregister the session.
--
-- Keys: queue, inbox, sessions
-- Arguments:
--   session  text  whose inbox
--   stays    flag  1: the session stays registered, because a blocking move may still be running
-- Reply: how many ids were returned.
-- Cost: O(1) per id. An inbox holds one or two.
-- Limits: at most 1,000 ids a call; the session stays registered while its inbox holds more.

-- Read all keys before anything is written, so that a key of another type loses no id.
redis.call('LLEN', queue)
redis.call('LLEN', inbox)
redis.call('ZCARD', sessions)

local returned = empty_inbox(inbox, 1000)
if returned < 1000 and not stays then
  redis.call('ZREM', sessions, session)
end
return returned
