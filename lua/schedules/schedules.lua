-- Return schedules, one step at a time.
--
-- Keys: schedules, ticks
-- Arguments:
--   prefix     text     the queue's name
--   cursor     text     "0" in the first call, then the cursor of the last reply
--   count      count    about how many to return
--   max_bytes  integer  the maximum of data to return; further schedules come without data
-- Reply: the next cursor ("0": done), then for each schedule: name, definition, next due time in ms (-1:
--   none), size of its data, data (false: left out).
-- Cost: O(count).
-- Limits: at most 1,000 schedules a call. A schedule that exists from the first step to the last is returned
--   at least once.
-- Uses: append (lists)

redis.call('ZCARD', ticks)
local page = redis.call('HSCAN', schedules, cursor, 'COUNT', count)
local reply, bytes = { page[1] }, 0
for i = 1, #page[2], 2 do
  local name = page[2][i]
  local key = prefix .. ':schedule:' .. name
  local size = redis.call('STRLEN', key)
  local data = false
  if bytes + size <= max_bytes then
    data = redis.call('GET', key) or ''
    bytes = bytes + size
  end
  append(reply, name, page[2][i + 1], tonumber(redis.call('ZSCORE', ticks, name) or -1), size, data)
end
return reply
