-- The beginning of an incarnation, right after its data was stored.
--
-- Needs: deadlines, scheduled, ledger
-- Gives: begin_incarnation

-- A new incarnation owes nothing to an earlier one that a foreign client completed, or that was
-- overwritten: neither its lease, its delay nor its ledger may live on. Follow it with `enter_…`.
local function begin_incarnation(ids)
  if #ids == 0 then
    return
  end
  local scores = redis.call('ZMSCORE', deadlines, unpack(ids))
  local stale = {}
  for i, score in ipairs(scores) do
    if score then
      stale[#stale + 1] = ids[i]
    end
  end
  leave_leased(stale)
  if any_scheduled then
    in_chunks('ZREM', scheduled, ids)
  end
  in_chunks('HDEL', ledger, ids)
  in_chunks('UNLINK', nil, lease_keys_of(ids))
end
