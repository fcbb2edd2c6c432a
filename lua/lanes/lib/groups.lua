-- Find the waiting items of a group: in its lanes, or moved to `queue` to wake a session.
--
-- Needs: prefix, deadlines, scheduled
-- Gives: promoted_of, laned_of_group, waiting_in_group
-- Uses: lanes_key (RARE_KEYS), HIGHEST_LEVEL, ID_AT, LANE_END, LANE_PAST, LEVEL_DIGITS, LEVEL_SIZE,
--   LOWEST_LEVEL (encodings), options_of (facts), data_key, place_in (keys), extend (lists)

-- Return the ids of a group that were moved from its lanes to `queue`, and are not leased yet.
local function promoted_of(group)
  local ids, mine = redis.call('ZRANGE', prefix .. ':promoted', 0, 999), {}
  if #ids == 0 then return mine end
  local ends, due =
    redis.call('ZMSCORE', deadlines, unpack(ids)), redis.call('ZMSCORE', scheduled, unpack(ids))
  for i, found in ipairs(options_of(ids)) do
    local id = ids[i]
    if
      found.group == group
      and not ends[i]
      and not due[i]
      and not place_in(redis.pcall('GET', prefix .. ':lease:' .. id))
      and redis.call('EXISTS', data_key(id)) == 1
    then
      mine[#mine + 1] = id
    end
  end
  return mine
end

-- Return up to `wanted` members of the lanes of a group, the highest level first, after a member ('':
-- from the first on); and their ids.
local function laned_of_group(group, after, wanted)
  local members, ids = {}, {}
  for level = tonumber(string.sub(after, 1, LEVEL_SIZE)) or HIGHEST_LEVEL, LOWEST_LEVEL do
    local lane = string.format(LEVEL_DIGITS, level) .. group
    local first = '[' .. lane .. LANE_END
    if string.sub(after, 1, #lane + 1) == lane .. LANE_END then first = '(' .. after end
    local past = '(' .. lane .. LANE_PAST
    if #members == wanted then break end
    -- stylua: ignore
    extend(members, redis.call('ZRANGE', lanes_key, first, past, 'BYLEX', 'LIMIT', 0, wanted - #members))
  end
  for i, member in ipairs(members) do
    ids[i] = string.sub(member, #group + LEVEL_SIZE + 1 + ID_AT)
  end
  return members, ids
end

-- Return how many items of a group wait in its lane of a level.
local function waiting_in_group(digits, group)
  local lane = digits .. group
  return redis.call('ZLEXCOUNT', lanes_key, '[' .. lane .. LANE_END, '(' .. lane .. LANE_PAST)
end
