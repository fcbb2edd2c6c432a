-- Ids on their way to one process that will not take them.
--
-- Needs: queue
-- Gives: empty_inbox

-- Move the ids of an inbox back to the front of the queue, dropping those that are done; returns how
-- many were moved or dropped.
local function empty_inbox(key, most)
  local seen = 0
  while seen < most do
    -- Called after much was written: an error, of an inbox that is no list, must not end the step.
    local id = redis.pcall('LPOP', key)
    if type(id) ~= 'string' then
      break
    end
    seen = seen + 1
    if redis.call('EXISTS', data_key(id)) == 1 then
      redis.call('RPUSH', queue, id)
    end
  end
  return seen
end
