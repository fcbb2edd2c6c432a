-- One step of a walk over the ids that wait, those on their way to a process first.
--
-- Keys:
--   queue     list  ids that wait
--   sessions  zset  session -> until when it is alive
-- Arguments:
--   prefix  text     the queue's name
--   start   integer  where to begin, from the end of the queue (0: the youngest)
--   count   integer  how many ids
-- Reply: the ids; fewer than `count` when the walk is over.
-- Cost: O(start + count).
-- Limits: `count` ids (at most 1,000), and the inboxes of 1,000 sessions when start is 0.

local ids = redis.call('LRANGE', queue, start, start + count - 1)
if start == 0 then
  for _, session in ipairs(redis.call('ZRANGE', sessions, 0, 999)) do
    for _, id in ipairs(redis.call('LRANGE', prefix .. ':inbox:' .. session, 0, 99)) do
      ids[#ids + 1] = id
    end
  end
end
return ids
