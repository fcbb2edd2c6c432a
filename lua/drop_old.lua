-- Drop the oldest dead letters, those that have been dead for some time.
--
-- Keys: dead, events
-- Arguments:
--   prefix  text     the queue's name
--   now_ms  integer  the time, or empty for the server's
--   age_ms  integer  dead for at least so long
--   count   integer  how many at most
-- Reply: how many were dropped; as many as `count`: there may be more, call again.
-- Cost: O(log n) per dead letter.
-- Limits: `count` dead letters (at most 1,000) a call.

local old = redis.call('ZRANGEBYSCORE', dead, '-inf', now - age_ms, 'LIMIT', 0, count)
leave_dead(old)
emit_all('dropped', old)
flush()
return #old
