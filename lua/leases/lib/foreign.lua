-- Find leases of clients of other libraries: a lease key whose value is not one of our sessions.
--
-- The value of ours begins with `OURS`. Our leases expire by `deadlines`, never by the key. A foreign lease
-- that a script finds is watched in `deadlines` as well. Its end there has the mark `FOREIGN_MARK`,
-- unlike ours: if the key disappears early, the item is free at once.
--
-- Needs: prefix, deadlines
-- Gives: holds_foreign, foreign_lease_left, are_leases_ours, watch_foreign, is_ours
-- Uses: FOREIGN_MARK, OURS, OURS_SIZE, WHOLE_MS (encodings), lease_keys_of (keys), read_clock (read_clock)

-- Return whether what a lease key holds (false: nothing) is that of a client of another library. A key of
-- another type is no lease, and must not end the script.
local function holds_foreign(holder)
  return type(holder) == 'string' and string.sub(holder, 1, OURS_SIZE) ~= OURS
end

-- Return in how many ms a foreign lease on this item expires; nil: there is none.
local function foreign_lease_left(id)
  for _, name in ipairs({ ':lease:', ':leased_by_session:' }) do
    local key = prefix .. name .. id
    if holds_foreign(redis.pcall('GET', key)) then
      local left = redis.call('PTTL', key)
      -- A lease key without a time to live is checked again after a minute.
      return left >= 0 and left or 60000
    end
  end
  return nil
end

-- Return whether no client of another library has leased any of these items, asked with one command.
local function are_leases_ours(ids)
  for _, holder in ipairs(redis.call('MGET', unpack(lease_keys_of(ids)))) do
    if holds_foreign(holder) then return false end
  end
  return true
end

-- Watch the lease of a foreign client that expires in `left` ms.
local function watch_foreign(id, left) redis.call('ZADD', deadlines, read_clock() + left + FOREIGN_MARK, id) end

-- Return whether a score of `deadlines` (false: none) is that of a lease of ours.
local function is_ours(score) return score and tonumber(score) % WHOLE_MS == 0 end
