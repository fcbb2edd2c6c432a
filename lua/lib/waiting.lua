-- The ids that wait, a piece at a time.
--
-- Needs: prefix, queue, sessions
-- Gives: waiting_ids

-- `count` ids from `start` on (0: the youngest); the first piece has those on their way to a process as well.
-- Ids that come in meanwhile move what is not walked yet away from its start: some may be met twice, none is missed.
local function waiting_ids(start, count)
  local ids = redis.call('LRANGE', queue, start, start + count - 1)
  if start == 0 then
    for _, session in ipairs(redis.call('ZRANGE', sessions, 0, 999)) do
      for _, id in ipairs(redis.call('LRANGE', prefix .. ':inbox:' .. session, 0, 99)) do
        ids[#ids + 1] = id
      end
    end
  end
  return ids
end
