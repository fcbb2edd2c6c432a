-- Drop the oldest dead letters, if they have been dead for a given time.
--
-- Keys: gone, scheduled, dead, options, errors, events
-- Arguments:
--   prefix  text     the queue's name
--   now_ms  integer  the time; empty: the server's time
--   age_ms  integer  the minimum time since their death
--   count   count    the maximum number to drop
-- Reply: how many were dropped; if it is `count`, there may be more: call again.
-- Cost: O(log n) per dead letter.
-- Limits: `count` dead letters (at most 1,000) a call.
-- Uses: tags_key (RARE_KEYS), now (clock), leave_dead (dead_letter), emit_all, flush (emit)

redis.call('HLEN', options)
redis.call('ZCARD', tags_key)
local old = redis.call('ZRANGEBYSCORE', dead, '-inf', now - age_ms, 'LIMIT', 0, count)
leave_dead(old)
emit_all('dropped', old)
flush()
return #old
