-- Return dead letters, either those with given ids or a slice of all, the newest first.
--
-- Keys: dead
-- Arguments:
--   prefix     text     the queue's name
--   start      integer  without ids: the first place to return; 0 is the newest, -1 the oldest
--   count      count    without ids: how many to return
--   max_bytes  integer  the maximum of data to return; further dead letters come without data
--   entries    rest     ids, or none
-- Reply: for each dead letter: id, time of death in ms (0: unknown), size of its data (-1: there is no such
--   dead letter), data (false: left out), error, attempt, token.
-- Cost: O(log n + count).
-- Limits: at most 1,000 dead letters a call.
-- Uses: read_dead_letter (dead_letter), append, paired, values_from (lists)

local found, times
if #ARGV > entries then
  found = values_from(ARGV, entries + 1)
  times = redis.call('ZMSCORE', dead, unpack(found))
else
  local last = start + count - 1
  if start < 0 and last >= 0 then last = -1 end
  found, times = paired(redis.call('ZRANGE', dead, start, last, 'REV', 'WITHSCORES'))
end

local reply, room = {}, max_bytes
for i, id in ipairs(found) do
  local size, data, error_, attempt, token = read_dead_letter(id, room)
  room = data and room - size or room
  append(reply, id, tonumber(times[i] or 0), size, data, error_, attempt, token)
end
return reply
