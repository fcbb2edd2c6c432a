-- Put ids into `processing`, and remove them without searching the whole list.
--
-- From a short list each id is removed at once. In a long one a few old entries per id are read: those of
-- finished items are dropped, the others move to the young end, and ids that were not found are noted in
-- `gone` until they are. So the garbage stays below the list's own length, at a constant cost.
--
-- A foreign cleaner may have removed an id that we then cannot find, and a foreign client may hold that id
-- when its entry is found. So an id under a foreign lease is not dropped, even if it is in `gone`.
--
-- Needs: processing, gone
-- Gives: enlist, noted_among, unlist, cut_oldest

-- Put ids into the list. An id that is noted in `gone` still has an entry, which is used again: as an id is noted
-- only once, a second entry would stay behind when the item is finished.
local function enlist(ids)
  local entering = ids
  if redis.call('EXISTS', gone) == 1 then
    entering = {}
    for _, id in ipairs(ids) do
      if redis.call('SREM', gone, id) == 0 then
        entering[#entering + 1] = id
      end
    end
  end
  in_chunks('LPUSH', processing, entering)
end

local function unlist_short(ids)
  for _, id in ipairs(ids) do
    redis.call('LREM', processing, -1, id)
  end
  for _, id in ipairs(redis.call('SPOP', gone, 256)) do
    if not foreign_lease_left(id) then
      redis.call('LREM', processing, -1, id)
    end
  end
end

-- Return which of these entries are noted in `gone`: id -> true.
local function noted_among(ids)
  local noted = {}
  if redis.call('EXISTS', gone) == 0 then
    return noted
  end
  for from = 1, #ids, 1000 do
    local to = math.min(from + 999, #ids)
    local marks = redis.call('SMISMEMBER', gone, unpack(ids, from, to))
    for i, mark in ipairs(marks) do
      local id = ids[from + i - 1]
      noted[id] = (mark == 1 and not foreign_lease_left(id)) or nil
    end
  end
  return noted
end

local function unlist_long(ids)
  local wanted, missing = {}, #ids
  for _, id in ipairs(ids) do
    wanted[id] = true
  end
  local old = redis.call('LRANGE', processing, -3 * #ids - 8, -1)
  local noted = noted_among(old)
  local kept, swept = {}, {}
  for _, id in ipairs(old) do
    if wanted[id] then
      wanted[id] = nil
      missing = missing - 1
    elseif noted[id] then
      noted[id] = nil
      swept[#swept + 1] = id
    else
      kept[#kept + 1] = id
    end
  end
  redis.call('LTRIM', processing, 0, -#old - 1)
  -- If all were among the oldest, as when items are completed in order, the others keep their places.
  local in_place = missing == 0 and #swept == 0
  in_chunks(in_place and 'RPUSH' or 'LPUSH', processing, kept)
  in_chunks('SREM', gone, swept)
  local not_found = {}
  for id in pairs(wanted) do
    not_found[#not_found + 1] = id
  end
  in_chunks('SADD', gone, not_found)
end

local function unlist(ids)
  if #ids == 0 then
    return
  elseif redis.call('LLEN', processing) <= 128 then
    unlist_short(ids)
  else
    unlist_long(ids)
  end
end

-- Remove the oldest entries if they are these ids, in any order, as when items are completed in the order in which
-- they were leased; returns whether they were. While `gone` is not empty, none are removed.
local function cut_oldest(ids)
  if #ids == 0 or redis.call('EXISTS', gone) == 1 then
    return false
  end
  local wanted = {}
  for _, id in ipairs(ids) do
    wanted[id] = true
  end
  for _, id in ipairs(redis.call('LRANGE', processing, -#ids, -1)) do
    if not wanted[id] then
      return false
    end
    wanted[id] = nil
  end
  redis.call('LTRIM', processing, 0, -#ids - 1)
  return true
end
