-- Return the items that a session holds, one step of a walk over all leases at a time.
--
-- There is no index of leases by session: it would cost a write with each lease, and one with each end of a lease.
--
-- Keys: deadlines, ledger
-- Arguments:
--   prefix  text   the queue's name
--   holder  text   the session
--   cursor  text   "0" in the first call, then the cursor of the last reply
--   count   count  about how many leases to check
-- Reply: the next cursor ("0": done), then the id and the token of each item.
-- Cost: O(count): 1 to 3 µs for each lease of the queue that is checked.
-- Limits: `count` (at most 1,000) leases; a small set is checked at once.

local page = redis.call('ZSCAN', deadlines, cursor, 'COUNT', count)
local ids = {}
for i = 1, #page[2], 2 do
  ids[#ids + 1] = page[2][i]
end
local reply, held, holders = { page[1] }, {}, holders_of(ids)
for i, id in ipairs(ids) do
  held[#held + 1] = holders[i] == holder and id or nil
end
for i, record in ipairs(read_in_chunks('HMGET', ledger, held)) do
  local _, token = read_ledger(record)
  reply[2 * i], reply[2 * i + 1] = held[i], token or 0
end
return reply
