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
-- Uses: read_dead_letter (dead_letter)

local found, times = {}, {}
if #ARGV > entries then
  for row = entries + 1, #ARGV do
    found[#found + 1] = ARGV[row]
  end
  times = redis.call('ZMSCORE', dead, unpack(found))
else
  local last = start + count - 1
  if start < 0 and last >= 0 then last = -1 end
  local pairs_ = redis.call('ZRANGE', dead, start, last, 'REV', 'WITHSCORES')
  for i = 1, #pairs_, 2 do
    found[#found + 1] = pairs_[i]
    times[#found] = pairs_[i + 1]
  end
end

local reply, room = {}, max_bytes
for i, id in ipairs(found) do
  local size, data, error_, attempt, token = read_dead_letter(id, room)
  room = data and room - size or room
  local base = #reply
  reply[base + 1], reply[base + 2], reply[base + 3] = id, tonumber(times[i] or 0), size
  reply[base + 4], reply[base + 5], reply[base + 6], reply[base + 7] = data, error_, attempt, token
end
return reply
