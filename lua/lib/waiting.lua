-- Return a slice of the ids that wait.
--
-- Needs: prefix, queue, sessions
-- Gives: waiting_ids

-- Return up to `limit` ids from `first` on (0: the youngest); the first slice also has those in inboxes. Ids that are
-- added between two slices move the others away from the start: some are returned twice, none is missed.
local function waiting_ids(first, limit)
  local ids = redis.call('LRANGE', queue, first, first + limit - 1)
  if first == 0 then
    for _, session in ipairs(redis.call('ZRANGE', sessions, 0, 999)) do
      for _, id in ipairs(redis.call('LRANGE', prefix .. ':inbox:' .. session, 0, 99)) do
        ids[#ids + 1] = id
      end
    end
  end
  return ids
end
