-- Count the items that wait.
--
-- Needs: prefix, queue, sessions
-- Gives: count_waiting

-- Return how many items wait, including those on their way to one of the first 1,000 sessions. One command
-- says whether there are any of these.
local function count_waiting()
  local waiting = redis.call('LLEN', queue)
    + redis.call('LLEN', prefix .. ':held')
    + redis.call('ZCARD', prefix .. ':lanes')
  local inboxes = {}
  for i, session_ in ipairs(redis.call('ZRANGE', sessions, 0, 999)) do
    inboxes[i] = prefix .. ':inbox:' .. session_
  end
  if inboxes[1] and redis.call('EXISTS', unpack(inboxes)) > 0 then
    for _, inbox_ in ipairs(inboxes) do
      waiting = waiting + redis.call('LLEN', inbox_)
    end
  end
  return waiting
end
