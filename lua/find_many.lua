-- Look at items by their ids, and in which state each is, without touching them.
--
-- An item that is neither scheduled nor under anybody's lease counts as waiting: the list is not searched.
--
-- Keys:
--   deadlines  zset  id -> end of its lease
--   scheduled  zset  id -> due time
--   ledger     hash  id -> leases and deliveries of this incarnation
-- Arguments:
--   prefix     text     the queue's name
--   now_ms     integer  the time, or empty for the server's
--   max_bytes  integer  give no more data than this; further items come without theirs
--   wanted     rest     ids
-- Reply: the time in ms and, for each id of which there is an item, its state and the eight values of `inspect`.
-- Cost: O(log n) per id.
-- Limits: at most 1,000 ids a call.

-- @include clock
-- @include keys
-- @include ledger
-- @include view

local ids, states, times = {}, {}, {}
for at = wanted + 1, #ARGV do
  ids[#ids + 1] = ARGV[at]
end
local due_at = redis.call('ZMSCORE', scheduled, unpack(ids))
local ends = redis.call('ZMSCORE', deadlines, unpack(ids))
local holders = holders_of(ids)
for i, id in ipairs(ids) do
  if due_at[i] then
    states[i], times[i] = 'scheduled', tonumber(due_at[i])
  elseif ends[i] then
    states[i], times[i] = 'leased', tonumber(ends[i])
  elseif holders[i] then
    -- Leases of foreign clients have a key alone, until a clean has seen them.
    local left_ms = -1
    for _, key in ipairs(lease_keys_of({ id })) do
      left_ms = math.max(left_ms, redis.call('PTTL', key))
    end
    states[i], times[i] = 'leased', left_ms >= 0 and now + left_ms
  else
    states[i] = 'waiting'
  end
end
local reply = { now }
add_views(reply, ids, times, max_bytes, holders, states)
return reply
