-- Return ids that are on their way to a process to the queue.
--
-- Needs: queue
-- Gives: empty_inbox

-- Move up to `limit` ids of an inbox to the front of the queue, in their old order; returns how many.
local function empty_inbox(key, limit)
  local moved = 0
  -- The script may have written other keys: an inbox of another type must not end it.
  while moved < limit and type(redis.pcall('LMOVE', key, queue, 'LEFT', 'RIGHT')) == 'string' do
    moved = moved + 1
  end
  return moved
end
