-- Name and drop dead letters. A dead letter exists if and only if its own key, a hash, does.
--
-- Needs: prefix, dead
-- Gives: dead_key, leave_dead

local function dead_key(id)
  return prefix .. ':dead:' .. id
end

local function leave_dead(ids)
  local keys = {}
  for i, id in ipairs(ids) do
    keys[i] = dead_key(id)
  end
  in_chunks('UNLINK', nil, keys)
  in_chunks('ZREM', dead, ids)
end
