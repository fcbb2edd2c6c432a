-- Put orphans back: ids with data that were in no list when the deep clean looked.
--
-- Whatever was leased since then has moved by itself and is left alone; what a foreign client has taken
-- without having written its lease key yet gets a short grace, as in `light_clean`.
--
-- Keys: queue, processing, deadlines, scheduled, ledger, events
-- Arguments:
--   prefix      text     the queue's name
--   now_ms      integer  the time, or empty for the server's
--   started_ms  integer  when this deep clean began
--   grace_ms    integer  how long an id that a foreign client has just taken is left alone
--   orphans     rest     ids
-- Reply: how many were put back.
-- Cost: O(log n) per id, and a look at 1,000 entries of `queue` and of `processing`.
-- Limits: at most 1,000 ids a call.

-- Another cleaner may have put the same ones back just now, at the young end.
local waits = {}
for _, id in ipairs(redis.call('LRANGE', queue, 0, 999)) do
  waits[id] = true
end

local back = {}
for at = orphans + 1, #ARGV do
  local id = ARGV[at]
  local _, _, _, leased_at = read_ledger(redis.call('HGET', ledger, id))
  local moved = redis.call('ZSCORE', deadlines, id)
    or redis.call('ZSCORE', scheduled, id)
    or (leased_at or 0) >= started_ms
    or redis.call('EXISTS', data_key(id)) == 0
    or waits[id]
  if not moved then
    local left = foreign_lease_left(id)
    if left then
      watch_foreign(id, left)
    elseif redis.call('LPOS', processing, id, 'MAXLEN', 1000) then
      watch_foreign(id, grace_ms)
    else
      back[#back + 1] = id
    end
  end
end
in_chunks('LPUSH', queue, back)
emit_all('restored', back)
flush()
return #back
