-- Look at schedules without touching them, in steps.
--
-- Keys: schedules, ticks
-- Arguments:
--   prefix     text     the queue's name
--   cursor     text     where the last step ended; "0" to begin
--   count      integer  about how many
--   max_bytes  integer  give no more data than this; further schedules come without theirs
-- Reply: the cursor of the next step ("0": this was the last), then for each: name, definition, next due time
--   in ms (-1: none), size of its data, data (false: left out).
-- Cost: O(count).
-- Limits: at most 1,000 schedules a call. What is there all the while comes once at least.

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
  local base = #reply
  reply[base + 1], reply[base + 2] = name, page[2][i + 1]
  reply[base + 3] = tonumber(redis.call('ZSCORE', ticks, name) or -1)
  reply[base + 4], reply[base + 5] = size, data
end
return reply
