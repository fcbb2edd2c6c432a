-- Register a session that is about to wait, for longer than its blocking move can last.
--
-- The command is sent on the waiting connection, right before the move. So no move is ever running for a
-- session that is not registered, and ids that arrive for a process that has died are found through its
-- session.
--
-- Keys: deadlines, scheduled, sessions
-- Arguments:
--   now_ms   integer  the time; empty: the server's time
--   session  text     the session that waits
--   keep_ms  integer  how long it is registered
-- Reply: ms until the next item falls due or lease expires (0: one has, or a session has expired whose inbox has to be
--   reclaimed; -1: none will).
-- Cost: O(log n) in the number of waiting processes.
-- Limits: none.

local wait = next_due_in()
local first = redis.call('ZRANGE', sessions, 0, 1, 'WITHSCORES')
for i = 1, #first, 2 do
  if first[i] ~= session and tonumber(first[i + 1]) <= now then
    wait = 0
  end
end
redis.call('ZADD', sessions, now + keep_ms, session)
return wait
