-- Leases that a client of another library holds: a lease key whose value is not one of our sessions.
--
-- Ours are told by the value's beginning, "lh:". Our own leases end by `deadlines`, never by the key.
-- A foreign lease that we met is watched in `deadlines` as well. Its end there lies on half a
-- millisecond, which tells it from ours: should its key vanish early, the item is free at once.
--
-- Needs: prefix
-- Gives: foreign_lease_left, is_ours

-- How many ms a foreign lease on this item has left, or nil if there is none.
local function foreign_lease_left(id)
  for _, name in ipairs({ ':lease:', ':leased_by_session:' }) do
    local key = prefix .. name .. id
    -- A key of another type is no lease, and no reason to stop half-way.
    local holder = redis.pcall('GET', key)
    if type(holder) == 'string' and string.sub(holder, 1, 3) ~= 'lh:' then
      local left = redis.call('PTTL', key)
      -- A lease key without an end is nobody's promise: look again in a minute.
      return left >= 0 and left or 60000
    end
  end
  return nil
end

-- Whether an end in `deadlines` (false: none) is that of a lease of ours.
local function is_ours(score)
  return score and tonumber(score) % 1 == 0
end
