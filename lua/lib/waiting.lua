-- Find ids that wait.
--
-- Needs: prefix, queue, sessions
-- Gives: waits_near_an_end, waiting_ids

-- Return whether an id is in the queue near one of its ends. Deeper it is not found.
local function waits_near_an_end(id)
  return redis.call('LPOS', queue, id, 'MAXLEN', 256)
    or redis.call('LPOS', queue, id, 'RANK', -1, 'MAXLEN', 256)
end

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
