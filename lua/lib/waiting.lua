-- The ids that wait, a piece at a time.
--
-- Needs: prefix, queue, sessions
-- Gives: waiting_ids

-- `most` ids from `first` on (0: the youngest); the first piece has those on their way to a process as well.
-- Ids that come in meanwhile move the others away from the start: some may be met twice, none is missed.
local function waiting_ids(first, most)
  local ids = redis.call('LRANGE', queue, first, first + most - 1)
  if first == 0 then
    for _, session in ipairs(redis.call('ZRANGE', sessions, 0, 999)) do
      for _, id in ipairs(redis.call('LRANGE', prefix .. ':inbox:' .. session, 0, 99)) do
        ids[#ids + 1] = id
      end
    end
  end
  return ids
end
