-- Find out whether a queue is being deleted. Then nothing is added to it, and nothing
-- leased from it: see `close_queue`.
--
-- Needs: prefix
-- Gives: is_closed, closed_error
-- Uses: control_key (RARE_KEYS), controlled (controlled)

local is_closed = controlled and redis.call('HEXISTS', control_key, 'closed') == 1

-- Return the error of a call that would add to the queue.
local function closed_error()
  return redis.error_reply('QUEUEDELETED the queue ' .. prefix .. ' is being deleted')
end
