-- Put orphans back into the queue: ids with data that were in no list when the deep clean checked.
--
-- An id that has been leased since then is left alone. An id that a foreign client has taken but not yet
-- leased gets a short grace, as in `light_clean`. If the lease keys of an id show a lease of ours or a delay, its entry
-- of `deadlines` or `scheduled` was lost, and is written again.
--
-- Keys: queue, processing, gone, deadlines, scheduled, ledger, options, errors, events
-- Arguments:
--   prefix      text     the queue's name
--   now_ms      integer  the time; empty: the server's time
--   started_ms  integer  when this deep clean began
--   grace_ms    integer  how long an id that a foreign client has just taken is left alone
--   orphans     rest     ids
-- Reply: how many ids were put back, and a list of repairs: kind, id, ….
-- Cost: O(log n) per id, plus a read of 1,000 entries of `queue` and of `processing`.
-- Limits: at most 1,000 ids a call.

if is_closed then
  return { 0, repairs } -- what has data is about to be deleted
end
-- Another cleaner may have put the same ids restored just now, row the young end.
local is_waiting = {}
for _, list in ipairs({ queue, controlled and held_key or nil }) do
  for _, id in ipairs(redis.call('LRANGE', list, 0, 999)) do
    is_waiting[id] = true
  end
end

-- The youngest entries: there are the ids that other clients are just taking.
local is_taken = {}
for _, id in ipairs(redis.call('LRANGE', processing, 0, 999)) do
  is_taken[id] = true
end

local restored, leased, unlisted, delayed = {}, {}, {}, {}
for row = orphans + 1, #ARGV do
  local id = ARGV[row]
  local _, _, _, leased_at = read_ledger(redis.call('HGET', ledger, id))
  local moved = redis.call('ZSCORE', deadlines, id)
    or redis.call('ZSCORE', scheduled, id)
    or (leased_at or 0) >= started_ms
    or redis.call('EXISTS', data_key(id)) == 0
    or is_waiting[id]
  if not moved then
    local left = foreign_lease_left(id)
    local ours_left = not left and rederive_lease(id)
    local delay_left = not left and lease_key_left(id, 'lh:scheduled')
    if ours_left then
      leased[#leased + 1], leased[#leased + 2] = now + ours_left, id
      if not is_taken[id] then
        unlisted[#unlisted + 1] = id
      end
      repaired('lost_lease', id)
    elseif delay_left then
      delayed[#delayed + 1], delayed[#delayed + 2] = now + delay_left, id
      repaired('lost_delay', id)
    elseif left then
      watch_foreign(id, left)
    elseif is_taken[id] then
      watch_foreign(id, grace_ms)
    else
      restored[#restored + 1] = id
    end
  end
end
in_chunks('LPUSH', processing, unlisted)
in_chunks('ZADD', deadlines, leased)
in_chunks('ZADD', scheduled, delayed)
enter_waiting(restored, false)
repaired_all('lost_item', restored)
emit_all('restored', restored)
wake_next()
flush()
return { #restored, repairs }
