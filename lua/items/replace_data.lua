-- Replace the data of leased items, as their current holders ask: what a later holder is to begin with.
--
-- Keys: deadlines, scheduled, ledger
-- Arguments:
--   prefix   text     the queue's name
--   now_ms   integer  the time; empty: the server's time
--   entries  rest     id, token, data, …
-- Reply: a list with an entry per item: 1 replaced, 0 rejected (completed, returned, or leased to another).
-- Cost: O(1) per item.
-- Limits: at most 1,000 items a call and, except for a single item, 1 MiB of data.
-- Uses: is_current (current), data_key, in_chunks (keys), values_from (lists)

local ids = values_from(ARGV, entries + 1, 3)
redis.call('ZCARD', scheduled) -- raises now, before anything is written, if the key has another type
local records = redis.call('HMGET', ledger, unpack(ids))
local scores = redis.call('ZMSCORE', deadlines, unpack(ids))

local answers, stored = {}, {}
for i, id in ipairs(ids) do
  local row = entries + 3 * (i - 1)
  answers[i] = 0
  if is_current(id, tonumber(ARGV[row + 2]), scores[i], records[i]) then
    redis.call('STRLEN', data_key(id))
    answers[i] = 1
    stored[#stored + 1], stored[#stored + 2] = data_key(id), ARGV[row + 3]
  end
end
in_chunks('MSET', nil, stored)
return answers
