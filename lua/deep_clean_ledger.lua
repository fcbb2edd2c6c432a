-- Drop entries of the ledger of items that a foreign client has completed while they waited, one step at a
-- time.
--
-- Keys: gone, deadlines, scheduled, ledger, options, errors, events
-- Arguments:
--   prefix  text     the queue's name
--   now_ms  integer  the time; empty: the server's time
--   cursor  text     "0" in the first call, then the cursor of the last reply
--   count   count    about how many entries to check
-- Reply: the next cursor ("0": done), how many entries were dropped.
-- Cost: O(count).
-- Limits: one HSCAN of `count` (at most 1,000) a call; a small ledger is checked at once.

local page = redis.call('HSCAN', ledger, cursor, 'COUNT', count)
local stale = {}
for i = 1, #page[2], 2 do
  local id = page[2][i]
  if redis.call('EXISTS', data_key(id)) == 0 and not redis.call('ZSCORE', deadlines, id) then
    stale[#stale + 1] = id
  end
end
forget_facts(stale)
in_chunks('HDEL', ledger, stale)
emit_all('vanished', stale)
flush()
return { page[1], #stale }
