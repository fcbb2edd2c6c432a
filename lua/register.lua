-- A session is about to wait: keep it on the list for longer than its blocking move can last.
--
-- Sent on the waiting connection, right before the move, so that no move is ever under way for a
-- session that is not on the list: what arrives for a process that died is found through it.
--
-- Keys:
--   sessions  zset  session -> until when it is alive
-- Arguments:
--   now_ms   integer  the time, or empty for the server's
--   session  text     who waits
--   keep_ms  integer  how long
-- Reply: 1 if the session is new on the list, 0 if it was there.
-- Cost: O(log n) in the number of waiting processes.
-- Limits: none.

-- @include clock

return redis.call('ZADD', sessions, now + keep_ms, session)
