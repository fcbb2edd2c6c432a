-- Begin the incarnation of items, right after their data was stored.
--
-- Needs: deadlines, scheduled, ledger
-- Gives: begin_incarnation

-- Remove the lease, the delay and the ledger of an earlier incarnation that a foreign client has completed or
-- that is overwritten. Call `enter_…` after it.
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
