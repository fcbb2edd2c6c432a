-- Drop one of two entries of an id in the queue, in what is held while the queue
-- is controlled, or in the lanes.
--
-- The caller has met the id twice in a walk. It may have been at two places one after the other: an entry is
-- dropped only if both are there now.
--
-- Keys: queue, gone, deadlines, scheduled, options, errors
-- Arguments:
--   prefix  text     the queue's name
--   now_ms  integer  the time; empty: the server's time
--   which   text     "queue", "held" or "lanes"
--   item    text     the id
--   met_at  text     where the walk has met it: a place, from the young end (0: the youngest); of lanes a
--       cursor of `list_ids` with which the entry is found
--   met_again text   where it has met it again
--   count   count    how many entries to look at on both sides of a place
-- Reply: a list of repairs: kind, id.
-- Cost: O(count), and O(n) of a list if an entry is dropped.
-- Limits: `count` at most 1,000. In the middle of a longer list than 200,000 none is dropped.
-- Uses: held_key, lanes_key (RARE_KEYS), options_of (facts), place_in (keys), lanes (lanes), repaired,
--   repairs (repairs)

redis.call('LLEN', queue)

-- Of two entries the one stays that is in the right lane, or that is leased first. The
-- lease key says its place then.
local function drop_from_lanes()
  local right = lanes().lane_of(options_of({ item })[1])
  local seen, found, best = {}, {}, nil
  for _, at in ipairs({ met_at, met_again }) do
    local after = at == 'lanes' and '-' or '(' .. at
    for _, member in ipairs(redis.call('ZRANGE', lanes_key, after, '+', 'BYLEX', 'LIMIT', 0, count)) do
      local name, _, of_id = lanes().split_member(member)
      if of_id == item and not seen[member] then
        seen[member], found[#found + 1] = true, member
        if not best or (name == right and lanes().split_member(best) ~= right) then best = member end
      end
    end
  end
  if found[2] and place_in(redis.pcall('GET', prefix .. ':lease:' .. item)) then
    lanes().keep_key(item, (select(2, lanes().split_member(best))))
  end
  for _, member in ipairs(found) do
    if member ~= best then
      redis.call('ZREM', lanes_key, member)
      repaired('two_places', item)
    end
  end
end

-- Return where the id is near a place of a list, the youngest entry or the oldest; nil: nowhere.
local function find_near(list, about, is_oldest)
  local from = math.max(0, tonumber(about) - count)
  local near, at = redis.call('LRANGE', list, from, tonumber(about) + count), nil
  for i, one in ipairs(near) do
    if one == item and (is_oldest or not at) then at = from + i - 1 end
  end
  return at
end

-- The older entry is leased first, so the younger one is dropped.
local function drop_from(list)
  local younger, older = find_near(list, met_at), find_near(list, met_again, true)
  if not (younger and older and younger < older) then return end
  local from_old = redis.call('LLEN', list) - 1 - older
  local mark, at = none .. ' fsck', younger
  if younger > 100000 and from_old <= 100000 then at = older end
  if math.min(younger, from_old) <= 100000 then
    redis.call('LSET', list, at, mark)
    redis.call('LREM', list, at == younger and 1 or -1, mark)
    repaired('two_places', item)
  end
end

if which == 'lanes' then
  drop_from_lanes()
else
  drop_from(which == 'held' and held_key or queue)
end
return repairs
