-- Return the items that some sessions hold, one step of a walk over all leases at a time.
--
-- There is no index of leases by session: it would cost a write with each lease, and one with each end of a
-- lease. So those of all sessions that are failed together are found in one walk.
--
-- Keys: deadlines, ledger
-- Arguments:
--   prefix  text   the queue's name
--   cursor  text   "0" in the first call, then the cursor of the last reply
--   count   count  about how many leases to check
--   asked   rest   the sessions
-- Reply: the next cursor ("0": done), then the id, the token and the session of each item.
-- Cost: O(count): 1 to 3 µs for each lease of the queue that is checked.
-- Limits: `count` (at most 1,000) leases, and 1,000 sessions; a small set is checked at once.
-- Uses: read_in_chunks (keys), read_ledger (ledger), set_of, values_from (lists), holders_of (view)

local wanted = set_of(values_from(ARGV, asked + 1))
local page = redis.call('ZSCAN', deadlines, cursor, 'COUNT', count)
local ids = values_from(page[2], 1, 2)
local reply, held, sessions_of = { page[1] }, {}, {}
for i, holder in ipairs(holders_of(ids)) do
  if holder and wanted[holder] then
    held[#held + 1], sessions_of[#held + 1] = ids[i], holder
  end
end
for i, record in ipairs(read_in_chunks('HMGET', ledger, held)) do
  local _, token = read_ledger(record)
  reply[3 * i - 1], reply[3 * i], reply[3 * i + 1] = held[i], token or 0, sessions_of[i]
end
return reply
