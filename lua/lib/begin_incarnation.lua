-- Begin the incarnation of items: remove what an earlier one has left, which a foreign client has completed or
-- which is overwritten.
--
-- Needs: deadlines, scheduled, ledger
-- Gives: find_earlier, forget_earlier

-- Read what is left of earlier incarnations of ids. Call it before the first write. `no_lease_keys`: the caller knows
-- that there are none.
local function find_earlier(ids, no_lease_keys)
  local scores = read_in_chunks('ZMSCORE', deadlines, ids)
  local due = read_in_chunks('ZMSCORE', scheduled, ids)
  local records = read_in_chunks('HMGET', ledger, ids)
  local earlier = { leased = {}, delayed = {}, recorded = {}, no_lease_keys = no_lease_keys }
  for i, id in ipairs(ids) do
    if scores[i] then
      earlier.leased[#earlier.leased + 1] = id
    end
    if due[i] then
      earlier.delayed[#earlier.delayed + 1] = id
    end
    if records[i] then
      earlier.recorded[#earlier.recorded + 1] = id
    end
  end
  if #earlier.leased > 0 then
    check_processing()
  end
  return earlier
end

-- Remove it. Call it after `enter_…` and before the data is stored: until then new ids are ghosts.
local function forget_earlier(ids, earlier)
  leave_scheduled(earlier.delayed)
  in_chunks('HDEL', ledger, earlier.recorded)
  forget_facts(ids)
  leave_leased(earlier.leased)
  if not earlier.no_lease_keys then
    drop_lease_keys(ids)
  end
end
