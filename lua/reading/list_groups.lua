-- Return groups of which items wait, and how many wait and are leased.
--
-- Those that are leased are counted by the slots that they use, see `lanes/lib/limits`.
--
-- Keys: queue, deadlines, scheduled, options, errors, gone
-- Arguments:
--   prefix  text     the queue's name
--   first   text     the group to begin with, or the one after it in the order of bytes
--   count   count    how many groups to return
--   exact   flag     return only the group `first`, also if none of its items wait; with those that were
--       moved to `queue` to wake a session
-- Reply: a group, how many of its items wait, how many are leased, …
-- Cost: O(log n) per group, and for each level that has it.
-- Limits: at most 1,000 groups a call.
-- Uses: lanes_key, levels_key (RARE_KEYS), LANE_PAST, LEVEL_SIZE (encodings), promoted_of, waiting_in_group
--   (groups), append (lists)

redis.call('LLEN', queue) -- a cluster finds the node by a key of the script
local digits = redis.call('ZRANGE', levels_key, 0, -1)
local next_of, reply, start = {}, {}, first == '' and '\1' or first

-- Return the first group of a level from `start` on; false: there is none.
local function next_group(level)
  local member = redis.call('ZRANGE', lanes_key, '[' .. level .. start, '+', 'BYLEX', 'LIMIT', 0, 1)[1]
  return member and string.sub(member, 1, LEVEL_SIZE) == level and string.match(member, '^..(%Z+)%z') or false
end

local function add(group)
  local waiting = exact and #promoted_of(group) or 0
  for _, level in ipairs(digits) do
    if exact or next_of[level] == group then waiting = waiting + waiting_in_group(level, group) end
  end
  append(reply, group, waiting, redis.call('ZCARD', prefix .. ':running:' .. group))
end

if exact then
  add(first)
  return reply
end
while #reply < 3 * count do
  local soonest
  for _, level in ipairs(digits) do
    if next_of[level] == nil then next_of[level] = next_group(level) end
    if next_of[level] and (not soonest or next_of[level] < soonest) then soonest = next_of[level] end
  end
  if not soonest then break end
  add(soonest)
  start = soonest .. LANE_PAST
  for _, level in ipairs(digits) do
    if next_of[level] == soonest then next_of[level] = nil end
  end
end
return reply
