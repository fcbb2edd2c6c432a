-- Count the items that wait.
--
-- Needs: prefix, queue, sessions
-- Gives: count_waiting

-- Return how many items wait, including those on their way to one of the first 1,000 sessions.
local function count_waiting()
  local waiting = redis.call('LLEN', queue)
    + redis.call('LLEN', prefix .. ':held')
    + redis.call('ZCARD', prefix .. ':lanes')
  for _, session in ipairs(redis.call('ZRANGE', sessions, 0, 999)) do
    waiting = waiting + redis.call('LLEN', prefix .. ':inbox:' .. session)
  end
  return waiting
end
