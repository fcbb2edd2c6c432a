-- Check part of the lanes and limits of a controlled queue against the other keys,
-- and repair what does not agree.
--
-- Keys: queue, gone, deadlines, scheduled, options, errors
-- Arguments:
--   prefix  text     the queue's name
--   now_ms  integer  the time; empty: the server's time
--   which   text     the key: "lanes", "levels", "control", "slots" (the leased items of groups), or a
--       `turns:<50 - level>`; "index": remove levels and turns if no lane is left, and do nothing else
--   cursor  text     "0" in the first call, then the cursor of the last reply
--   count   count    about how many entries to check
-- Reply: the next cursor ("0": the whole key was checked), and a list of repairs: kind, id or name, ….
-- Cost: O(log n) per entry.
-- Limits: one scan of `count` entries (at most 1,000) a call; a small key is checked at once.
-- Uses: control_key, held_key, lanes_key, levels_key (RARE_KEYS), has_data, next_page, page_of (checks), now
--   (clock), end_control, right_pause (control), controlled (controlled), GROUP_AT, HIGHEST_LEVEL, LANE_END,
--   LEVEL_SIZE, LOWEST_LEVEL, PARKED, PLACE_SIZE, PLAIN_LANE, PLAIN_LEVEL (encodings), options_of (facts),
--   is_ours (foreign), complete_at, gathering (gathering), group_gates (group_gate), in_chunks,
--   lease_keys_of, place_in (keys), lanes (lanes), repaired, repairs (repairs), wake_next (slots)

redis.call('LLEN', queue)

-- Give the lanes their turn that have none; they would never be served.
local function enter_lost_lanes(names)
  for name in pairs(names) do
    local digits, group = string.sub(name, 1, LEVEL_SIZE), string.sub(name, GROUP_AT, -2)
    local is_known = redis.call('ZSCORE', lanes().turns_key(digits), group)
      and redis.call('ZSCORE', levels_key, digits)
    if not is_known then
      lanes().enter_index(name)
      repaired('lost_turn', group)
    end
  end
end

local function check_lanes()
  redis.call('ZCARD', levels_key)
  local members, scores = page_of('ZSCAN', lanes_key)
  local names, seen, wrong, right = {}, {}, {}, {}
  for i, member in ipairs(members) do
    -- stylua: ignore
    local digits = tonumber(string.match(member, '^(%d%d)[^%z]*%z' .. string.rep('%d', PLACE_SIZE)) or '')
    local is_lane = digits and digits >= HIGHEST_LEVEL and digits <= LOWEST_LEVEL
    local name, place, id = lanes().split_member(is_lane and member or LANE_END)
    if not is_lane then
      wrong[#wrong + 1] = member
      repaired('unreadable_lane_entry', member)
    elseif not has_data(id) then
      wrong[#wrong + 1] = member
      lanes().drop_key(id)
      repaired('ghost', id)
    elseif
      seen[id]
      or is_ours(redis.call('ZSCORE', deadlines, id))
      or redis.call('ZSCORE', scheduled, id)
    then
      wrong[#wrong + 1] = member
      repaired('two_places', id)
    elseif name == PLAIN_LANE then
      -- Those without a level and a group are held.
      wrong[#wrong + 1], seen[id] = member, true
      lanes().enter_lanes({ id }, false)
      repaired('unreadable_lane_entry', id)
    else
      seen[id], names[name] = true, true
      if scores[i] ~= '0' then
        right[#right + 1], right[#right + 2] = 0, member
        repaired('unreadable_lane_entry', id)
      end
      local noted = place_in(redis.pcall('GET', lease_keys_of({ id })[1]))
      if noted and noted ~= place then
        lanes().keep_key(id, place)
      elseif redis.call('EXISTS', unpack(lease_keys_of({ id }))) == 0 then
        lanes().keep_key(id, place)
        repaired('lost_lease_key', id)
      end
    end
  end
  enter_lost_lanes(names)
  in_chunks('ZADD', lanes_key, right)
  in_chunks('ZREM', lanes_key, wrong)
end

-- Return until when a lane gathers, by its first member.
local function gathers_till(name, first)
  local size, wait = gathering(string.sub(name, GROUP_AT, -2))
  local _, place = lanes().split_member(first or '')
  if not (size and tonumber(place)) or lanes().members_of(name, size - 1, 1)[1] then return now end
  return complete_at(place, wait)
end

-- Return whether a lane waits for a later turn than its group has to. `gathered`: when its batch is complete.
local function waits_too_long(turn, gate, gathered)
  local till = gate and gate.room == 0 and (gate.next_at(0) or math.huge) or now
  local latest = math.min(math.max(till, gathered), PARKED)
  return turn > latest + 1000 and not (turn >= PARKED and till > now)
end

-- A lane is put later because its group may not be served; leasing does so again, if that holds.
local function check_turns(key)
  local digits = string.sub(key, -2)
  local any_held = digits == PLAIN_LEVEL and redis.call('EXISTS', held_key) == 1
  local groups, turns = page_of('ZSCAN', key)
  local gates = group_gates(groups)
  for i, group in ipairs(groups) do
    local name = digits .. group .. LANE_END
    local first = lanes().members_of(name, 0, 1)[1]
    if not first and not (any_held and group == '') then
      redis.call('ZREM', key, group) -- no damage: leasing drops it, too
    elseif waits_too_long(tonumber(turns[i]), gates[i], gathers_till(name, first)) then
      redis.call('ZADD', key, now, group)
      repaired('late_turn', group)
    end
  end
end

local function check_levels()
  if redis.call('EXISTS', lanes_key, levels_key, held_key, control_key) == 0 then
    redis.call('UNLINK', prefix .. ':promoted', prefix .. ':rates') -- of no use in a plain queue
    return
  end
  if not controlled and redis.call('EXISTS', held_key) == 1 then
    controlled = true -- without a level, scripts would take the queue for a plain one
    lanes().enter_index(PLAIN_LANE)
    repaired('lost_turn', '')
  end
  local levels, times = page_of('ZSCAN', levels_key)
  for i, digits in ipairs(levels) do
    local level = tonumber(string.match(digits, '^%d%d$') or '')
    if not (level and level >= HIGHEST_LEVEL and level <= LOWEST_LEVEL) then
      redis.call('ZREM', levels_key, digits)
      repaired('late_turn', digits)
    elseif tonumber(times[i]) > now + 1000 then
      redis.call('ZADD', levels_key, now, digits)
      repaired('late_turn', digits)
    end
  end
end

-- What can be read in the fields of `control`, by what comes before the group.
local function check_control()
  local patterns = {
    rate = '^0*[1-9]%d*:0*[1-9]%d*$',
    concurrency = '^%d+$',
    paused = '^[%d%l]+ %d+ ',
    ageing = '^0*[1-9]%d*$',
    closed = '^%l+',
  }
  local fields, values = page_of('HSCAN', control_key)
  for i, field in ipairs(fields) do
    local pattern = patterns[string.match(field, '^%l+')]
    if pattern and not string.find(values[i], pattern) then
      redis.call('HSET', prefix .. ':lost:' .. 'control', field, values[i])
      redis.call('HDEL', control_key, field)
      repaired('unreadable_limit', field)
    elseif right_pause(field, values[i]) then
      repaired('wrong_pause', field)
    end
  end
end

-- A leased item of a group uses a slot of it, unless it was leased before the queue was controlled.
local function check_slots()
  local ids, ends = page_of('ZSCAN', deadlines)
  for i, found in ipairs(controlled and options_of(ids) or {}) do
    if found.group and is_ours(ends[i]) and has_data(ids[i]) then
      local key = prefix .. ':running:' .. found.group
      if redis.call('ZADD', key, 'NX', ends[i], ids[i]) == 1 then repaired('lost_slot', ids[i]) end
    end
  end
end

if which == 'index' then
  if controlled then end_control() end
  return { '0', {} }
elseif which == 'lanes' then
  check_lanes()
elseif which == 'levels' then
  check_levels()
elseif which == 'control' then
  check_control()
elseif which == 'slots' then
  check_slots()
else
  check_turns(prefix .. ':' .. which)
end
wake_next()
return { next_page(), repairs }
