-- The keys of single items, and variadic commands in pieces.
--
-- The family writes two names for a lease: `:lease:` since 0.3, `:leased_by_session:` before. We write
-- and honour both, so that cleaners of either age leave our items alone.
--
-- Needs: prefix
-- Gives: data_key, lease_keys_of, in_chunks

local function data_key(id)
  return prefix .. ':item:' .. id
end

local function lease_keys_of(ids)
  local found = {}
  for i = 1, #ids do
    found[2 * i - 1] = prefix .. ':lease:' .. ids[i]
    found[2 * i] = prefix .. ':leased_by_session:' .. ids[i]
  end
  return found
end

-- Lua can unpack some 8,000 values at most; 1,000 at a time is well below, and even, as pairs need.
local function in_chunks(command, key, values)
  for from = 1, #values, 1000 do
    local to = math.min(from + 999, #values)
    if key then
      redis.call(command, key, unpack(values, from, to))
    else
      redis.call(command, unpack(values, from, to))
    end
  end
end
