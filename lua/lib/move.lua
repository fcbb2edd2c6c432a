-- The moves between the states of an item. Each takes a list of ids; `enter_…` follows `leave_…`.
--
-- Needs: queue, deadlines
-- Gives: leave_leased, enter_waiting

-- `unlisted`: they are in `processing` no more.
local function leave_leased(ids, unlisted)
  in_chunks('ZREM', deadlines, ids)
  unlist(unlisted and {} or ids)
  in_chunks('UNLINK', nil, lease_keys_of(ids))
end

-- The first id of the list is the first to be leased again, at either side.
local function enter_waiting(ids, front)
  if front then
    local reversed = {}
    for i = #ids, 1, -1 do
      reversed[#reversed + 1] = ids[i]
    end
    in_chunks('RPUSH', queue, reversed)
  else
    in_chunks('LPUSH', queue, ids)
  end
end
