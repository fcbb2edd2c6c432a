-- Return ids that are on their way to a process to the queue.
--
-- Needs: queue
-- Gives: empty_inbox

-- Move up to `limit` ids of an inbox to the front of the queue, and drop those of finished items; returns how many
-- were moved or dropped.
local function empty_inbox(key, limit)
  local moved = 0
  while moved < limit do
    -- The script has already written other keys: an inbox of another type must not end it.
    local id = redis.pcall('LPOP', key)
    if type(id) ~= 'string' then
      break
    end
    moved = moved + 1
    if redis.call('EXISTS', data_key(id)) == 1 then
      redis.call('RPUSH', queue, id)
    end
  end
  return moved
end
