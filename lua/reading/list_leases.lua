-- Return the leases that began some time ago, one step of a scan at a time.
--
-- Keys: deadlines, ledger
-- Arguments:
--   prefix      text     the queue's name
--   now_ms      integer  the time; empty: the server's time
--   elapsed_ms  integer  the minimum time since an item was leased last; 0: all leases, also
--       the watched ones of other clients
--   cursor      text     "0" in the first call, then the cursor of the last reply
--   count       count    about how many leases to check
-- Reply: the next cursor ("0": done), then for each lease: id, token, when the item was leased last in ms
--   (both 0: a watched lease of another client).
-- Cost: O(count).
-- Limits: one ZSCAN of `count` (at most 1,000) a call; few leases are checked at once.
-- Uses: now (clock), is_ours (foreign), read_in_chunks (keys), read_ledger (ledger), append, paired (lists)

redis.call('HLEN', ledger)
local page = redis.call('ZSCAN', deadlines, cursor, 'COUNT', count)
local ids, scores = paired(page[2])
local records, reply = read_in_chunks('HMGET', ledger, ids), { page[1] }
for i, id in ipairs(ids) do
  local _, token, _, leased_at = read_ledger(records[i])
  if not (token and is_ours(scores[i])) then
    token, leased_at = 0, 0
  end
  if elapsed_ms == 0 or (token > 0 and leased_at <= now - elapsed_ms) then
    append(reply, id, token, leased_at)
  end
end
return reply
