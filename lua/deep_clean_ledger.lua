-- One step through the ledger: forget items that a foreign client completed while they waited.
--
-- Keys: deadlines, ledger, events
-- Arguments:
--   prefix  text     the queue's name
--   now_ms  integer  the time, or empty for the server's
--   cursor  text     "0" at first, then what the last call gave
--   count   integer  how many entries to look at, roughly
-- Reply: the next cursor ("0": done), how many entries were dropped.
-- Cost: O(count).
-- Limits: one HSCAN of `count` (at most 1,000) a call; a small ledger comes whole.

local page = redis.call('HSCAN', ledger, cursor, 'COUNT', count)
local stale = {}
for i = 1, #page[2], 2 do
  local id = page[2][i]
  if redis.call('EXISTS', data_key(id)) == 0 and not redis.call('ZSCORE', deadlines, id) then
    stale[#stale + 1] = id
  end
end
in_chunks('HDEL', ledger, stale)
emit_all('vanished', stale)
flush()
return { page[1], #stale }
