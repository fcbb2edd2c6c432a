-- Look at one item by its id, and in which state it is, without touching it.
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
--   wanted     text     the item's id
--   max_bytes  integer  leave its data out if they are more than this
-- Reply: the time in ms and, if there is such an item, its state and the eight values of `inspect`.
-- Cost: O(log n).
-- Limits: one item a call.

-- @include clock
-- @include keys
-- @include ledger
-- @include view

local due = redis.call('ZSCORE', scheduled, wanted)
local ends = redis.call('ZSCORE', deadlines, wanted)
local reply = { now, 'waiting' }
if due then
  reply[2] = 'scheduled'
elseif ends then
  reply[2], due = 'leased', ends
else
  -- Leases of foreign clients have a key alone, until a clean has seen them.
  local keys = lease_keys_of({ wanted })
  local left_ms = math.max(redis.call('PTTL', keys[1]), redis.call('PTTL', keys[2]))
  if left_ms > -2 then
    reply[2], due = 'leased', left_ms >= 0 and now + left_ms
  end
end
add_view(reply, wanted, due and tonumber(due), max_bytes)
return reply[4] < 0 and { now } or reply
