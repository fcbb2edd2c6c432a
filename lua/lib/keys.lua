-- Name the keys of single items, and send long lists of values in chunks.
--
-- Foreign clients write two names for a lease: `:lease:` since version 0.3, `:leased_by_session:` before. We
-- write and read both, so that cleaners of either version leave our items alone.
--
-- Needs: prefix
-- Gives: data_key, lease_keys_of, place_in, ids_in, in_chunks, read_in_chunks
-- Uses: ID_AT, LANE_END, WAITING_PLACE (encodings), extend (lists)

local function data_key(id) return prefix .. ':item:' .. id end

local function lease_keys_of(ids)
  local found = {}
  for i = 1, #ids do
    found[2 * i - 1] = prefix .. ':lease:' .. ids[i]
    found[2 * i] = prefix .. ':leased_by_session:' .. ids[i]
  end
  return found
end

-- Return the place in its lane of an id with this value of its lease key, which a deep clean may have marked;
-- nil or false: it waits in none.
local function place_in(value) return type(value) == 'string' and string.match(value, WAITING_PLACE) end

-- Return the ids in members of lanes; what another client has written there and is no member has none: ''.
local function ids_in(members)
  local found = {}
  for i, member in ipairs(members) do
    found[i] = string.sub(member, (string.find(member, LANE_END, 1, true) or 0) + ID_AT)
  end
  return found
end

-- Lua can unpack about 8,000 values; 1,000 is well below that, and even, as pairs need.
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

-- Return the reply of a command that answers a list, one entry for each value.
local function read_in_chunks(command, key, values)
  if #values > 0 and #values <= 1000 then return redis.call(command, key, unpack(values)) end
  local all = {}
  for from = 1, #values, 1000 do
    local to = math.min(from + 999, #values)
    extend(all, redis.call(command, key, unpack(values, from, to)))
  end
  return all
end
