-- Who holds an item now: what only the current holder may do asks here.
--
-- Needs: nothing
-- Gives: is_current

-- `score` and `record` are what `deadlines` and the ledger hold of the item.
local function is_current(id, token, score, record)
  local _, last = read_ledger(record)
  return is_ours(score)
    and token == last
    -- Once a lease of ours has ended, a foreign client may hold the item before we have met it there.
    and (tonumber(score) > now or not foreign_lease_left(id))
    and redis.call('EXISTS', data_key(id)) == 1
end
