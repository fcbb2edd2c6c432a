-- Keep the waiting ids of a controlled queue in lanes, and choose which are leased next.
--
-- A lane is a level and a group. `:lanes` is a sorted set with one member per id, all of the same
-- score: `<level><group>LANE_END<place><id>`, as `lib/encodings` has it. So the members of a lane follow
-- each other, in their order. Ids without a level and a group wait in the list `:held`, in the order
-- of `queue`: it is the lane `PLAIN_LANE`.
--
-- `:turns:<level>` has for each group when its lane was last served, in ms; a lane that may not be served
-- now is put later: until a time, or beyond `PARKED` if only a freed slot or a call opens it. `:levels` has
-- since when each level was not served. An entry of `:turns` without a lane is dropped when it is met,
-- and a lane always has one: it is written first. All of them go with the last lane, see `end_control`.
--
-- The lease key of an id in a lane says its place there, so that the id is found.
--
-- Needs: prefix, queue
-- Gives: lanes
-- Uses: held_key, lanes_key, levels_key (RARE_KEYS), have_ask (askers), controlled (controlled),
--   ALARM_GRACE_MS, FIRST_PLACE, GROUP_AT, ID_AT, LANE_END, LANE_PAST, LEVEL_DIGITS, LEVEL_SIZE, NO_LEVEL,
--   OURS, OURS_SIZE, PARKED, PLACES_PER_MS, PLACE_DIGITS, PLACE_SIZE, PLAIN_LANE, PLAIN_LEVEL, WAITING,
--   WAITS_FOR_NONE (encodings), options_of (facts), holds_foreign (foreign), first_place, gathering
--   (gathering), data_key, in_chunks, place_in (keys), lane_state (lane_state), closed_gate, free_shared,
--   narrow_rate, narrow_slots, note_rates, open_gate, paused_until, queue_gate, read_control (limits),
--   reversed (lists), have_look (looks), newer_format (newer), read_clock (read_clock)

local function turns_key(digits) return prefix .. ':turns:' .. digits end

-- Return the name of the lane of an item: the begin of its members. That of `held` is `PLAIN_LANE`.
local lane_names = {}
local function lane_of(found)
  if not lane_names[found] then
    local digits = string.format(LEVEL_DIGITS, NO_LEVEL - (found.level or 0))
    lane_names[found] = digits .. (found.group or '') .. LANE_END
  end
  return lane_names[found]
end

-- Return the parts of a member: the lane's name, its place and the id.
local function split_member(member)
  local cut = string.find(member, LANE_END, 1, true) or 0 -- another client may have written what is no member
  return string.sub(member, 1, cut),
    string.sub(member, cut + 1, cut + PLACE_SIZE),
    string.sub(member, cut + ID_AT)
end

-- Return up to `wanted` members of a lane after the first `skip`, or with `last` the last one.
local function members_of(name, skip, wanted, last)
  local first, till = '[' .. name, '(' .. string.sub(name, 1, -2) .. LANE_PAST
  if last then return redis.call('ZRANGE', lanes_key, till, first, 'BYLEX', 'REV', 'LIMIT', 0, 1) end
  return redis.call('ZRANGE', lanes_key, first, till, 'BYLEX', 'LIMIT', skip, wanted)
end

-- Enter a lane into the index, unless it is there. `turn`: when it is to be served next, even if it is there.
local function enter_index(name, turn)
  local digits, group = string.sub(name, 1, LEVEL_SIZE), string.sub(name, GROUP_AT, -2)
  redis.call('ZADD', levels_key, 'NX', read_clock(), digits)
  if turn then
    redis.call('ZADD', turns_key(digits), turn, group)
  else
    redis.call('ZADD', turns_key(digits), 'NX', read_clock(), group)
  end
end

-- Make the queue a controlled one: all that waits is held now.
local function begin_control()
  if not controlled then
    controlled = true
    redis.call('ZADD', levels_key, 'NX', read_clock(), PLAIN_LEVEL)
    if redis.call('EXISTS', queue) == 1 then redis.call('RENAME', queue, held_key) end
  end
end

-- Give a waiting id a lease key that keeps cleaners of other clients away, unless one of them has leased the
-- item. `place`: its place in its lane; 0: it is held.
local function keep_key(id, place, ...)
  local key = prefix .. ':lease:' .. id
  local holder = redis.pcall('GET', key)
  if not holder or (type(holder) == 'string' and string.sub(holder, 1, OURS_SIZE) == OURS) then
    redis.call('SET', key, WAITING .. place, ...)
    lane_state.kept_keys[id] = true
  end
end

-- Return whether an id waits in a lane of this name.
local function waits_in(name, id)
  local place = place_in(redis.pcall('GET', prefix .. ':lease:' .. id))
  return place and redis.call('ZSCORE', lanes_key, name .. place .. id)
end

-- Remove the lease key of an id that waits in no lane and has no data.
local function drop_key(id)
  local key = prefix .. ':lease:' .. id
  if redis.call('EXISTS', data_key(id)) == 0 and place_in(redis.pcall('GET', key)) then
    redis.call('UNLINK', key)
  end
end

-- Put ids into a lane. At either end, the first of them is the first to be leased. `again`: they were leased,
-- so where items gather, they go to the front. `waited`: there, their batch was complete, and is so again.
local function enter_lane(name, ids, front, again, waited)
  local size, wait = gathering(string.sub(name, GROUP_AT, -2))
  front = front or (size and again)
  local left = size and (waited and 0 or wait)
  local edge = members_of(name, 0, 1, not front)[1]
  local place = size and first_place() - (wait - left) * PLACES_PER_MS or FIRST_PLACE
  enter_index(name, size and (waited or not edge) and read_clock() + left)
  if edge then
    local _, text = split_member(edge)
    place = front and math.min(left == 0 and place or math.huge, tonumber(text) - #ids)
      or math.max(size and place or 0, tonumber(text) + 1)
  end
  local places, added, keys, kept = {}, {}, {}, {}
  for i, id in ipairs(ids) do
    places[i] = string.format(PLACE_DIGITS, place + i - 1)
    added[2 * i - 1], added[2 * i] = 0, name .. places[i] .. id
    keys[i] = prefix .. ':lease:' .. id
  end
  in_chunks('ZADD', lanes_key, added)
  if size and members_of(name, size - 1, 1)[1] then enter_index(name, read_clock()) end
  for i, holder in ipairs(redis.call('MGET', unpack(keys))) do
    if not holds_foreign(holder) then
      kept[#kept + 1], kept[#kept + 2] = keys[i], WAITING .. places[i]
      lane_state.kept_keys[ids[i]] = true
    end
  end
  in_chunks('MSET', nil, kept)
end

-- Put ids into their lanes, or into the queue as long as it is plain.
local function enter_lanes(ids, front, again, waited)
  local plain, names, by_name = {}, {}, {}
  for i, found in ipairs(options_of(ids)) do
    local name = lane_of(found)
    if name == PLAIN_LANE then
      plain[#plain + 1] = ids[i]
    else
      if not by_name[name] then
        names[#names + 1], by_name[name] = name, {}
      end
      table.insert(by_name[name], ids[i])
    end
  end
  if names[1] then begin_control() end
  for _, name in ipairs(names) do
    enter_lane(name, by_name[name], front, again, waited)
  end
  if front then
    in_chunks('RPUSH', controlled and held_key or queue, reversed(plain))
  else
    in_chunks('LPUSH', controlled and held_key or queue, plain)
  end
end

-- Take ids out of their lanes: each with the name of its lane and, unless it is held, its member. Those
-- held must be the next ones there.
local function leave_lanes(picked)
  local members, held = {}, 0
  for _, one in ipairs(picked) do
    members[#members + 1] = one.member or nil
    held = held + (one.member and 0 or 1)
  end
  in_chunks('ZREM', lanes_key, members)
  if held > 0 then redis.call('LTRIM', held_key, 0, -held - 1) end
end

-- Return whether a session will ask again at a time, and which.
local function read_alarm(at)
  local due, who = string.match(redis.call('GET', prefix .. ':alarm') or '', '^(%d+) (.*)$')
  due = tonumber(due or math.huge)
  return due <= at and due + ALARM_GRACE_MS >= read_clock(), who
end

-- Move an id out of its lane into the queue of this name, where it wakes one session. One that gathers stays
-- with the others: sessions are notified to ask.
local function wake(one, name)
  if one.member and gathering(string.sub(one.member, GROUP_AT)) then
    have_ask(name, 0)
    return
  end
  local promoted, lease_key = name .. ':promoted', name .. ':lease:' .. one.of_id
  redis.call('ZADD', promoted, read_clock(), one.of_id)
  redis.call('RPUSH', name .. ':queue', one.of_id)
  if one.member then
    redis.call('ZREM', name .. ':lanes', one.member)
  else
    redis.call('LTRIM', name .. ':held', 0, -2)
  end
  if place_in(redis.pcall('GET', lease_key)) then redis.call('UNLINK', lease_key) end
  if redis.call('ZCARD', promoted) > 1000 then
    in_chunks('ZREM', promoted, redis.call('ZRANGE', promoted, 0, 99))
  end
  have_look(name, 1, true)
end

-- Return an item at the front of any lane of a queue, to wake a session that finds out which one is the next.
local function find_any(name)
  local member = redis.call('ZRANGE', name .. ':lanes', 0, 0)[1]
  local id = member and select(3, split_member(member)) or redis.call('LINDEX', name .. ':held', -1)
  return id and { member = member, of_id = id }
end

-- Return whether a queue has a session that waits, and none that is being woken.
local function has_sleeper(name)
  return redis.call('EXISTS', name .. ':queue') == 0 and redis.call('ZCARD', name .. ':sessions') > 0
end

-- Return what waits in the first lane whose turn has come, or when the first turn comes. Whether
-- its group may be served only leasing finds out: it parks the lane if not. Empty lanes are dropped
-- from the index, a few in a call.
local function find_next()
  local soonest, empty = math.huge, 0
  local held = redis.call('LINDEX', held_key, -1)
  for _, digits in ipairs(redis.call('ZRANGE', levels_key, 0, -1)) do
    while empty < 10 do
      local group, turn = unpack(redis.call('ZRANGE', turns_key(digits), 0, 0, 'WITHSCORES'))
      if not group then break end
      local name = digits .. group .. LANE_END
      local member = members_of(name, 0, 1)[1]
      if not member and not (held and name == PLAIN_LANE) then
        redis.call('ZREM', turns_key(digits), group)
        empty = empty + 1
      elseif tonumber(turn) > read_clock() + 1 then
        soonest = math.min(soonest, tonumber(turn))
        break
      else
        return { member = member, of_id = member and select(3, split_member(member)) or held }
      end
    end
  end
  if held then return { of_id = held } end
  return nil, soonest < PARKED and math.ceil(soonest) or nil
end

-- Wake one session of this queue, as `promote` does, or note that the queue waits for a slot that it shares.
-- Returns whether a session was woken.
local function promote_own(gate)
  if not has_sleeper(prefix) then return false end
  gate = gate or queue_gate()
  local one, at
  if gate.room > 0 then
    one, at = find_next()
  elseif redis.call('EXISTS', lanes_key, held_key) > 0 then
    at = gate.next_at(0)
    if gate.pool_free == 0 and gate.own_room > 0 then
      redis.call('ZADD', read_control().shared .. ':queues', 'LT', read_clock(), prefix)
    end
  end
  if at and not read_alarm(at) then one = find_any(prefix) end
  if one then wake(one, prefix) end
  return one ~= nil
end

-- Wake one session, if one waits and the next item may be leased; or if time alone permits it and no session
-- will ask then. The session finds out which item is the next.
--
-- If there are free slots that queues share, each is for one of those that wait for it, the longest first. A
-- queue that was woken and cannot use it calls this too, and so wakes the next one.
local function promote()
  local pool = read_control().shared
  if not pool then
    promote_own()
    return
  end
  local gate, is_done = queue_gate(), false
  local free = gate.pool_free or 0
  local queues = pool .. ':queues'
  local names = free > 0 and redis.call('ZRANGEBYSCORE', queues, 0, '(inf') or {}
  for _, name in ipairs(names) do
    if free > 0 then
      local _, woken
      local is_left = newer_format(name) -- its own workers wake it
      if name == prefix then
        is_done, woken = true, promote_own(gate)
      elseif not is_left then
        -- Keys of the other queue that are none, or forbidden, must not fail this one.
        _, woken = pcall(function()
          local one = has_sleeper(name) and find_any(name)
          return one and (wake(one, name) or true)
        end)
      end
      free = free - (woken == true and 1 or 0)
      if not is_left then redis.call('ZADD', queues, WAITS_FOR_NONE, name) end
    end
  end
  if not is_done then
    if gate.pool_free then
      gate.room, gate.pool_free = math.min(gate.room, free), free
    end
    promote_own(gate)
  end
end

-- Note the groups of items whose leases end, before their options are forgotten.
local function note_groups(ids)
  for i, found in ipairs(options_of(ids)) do
    lane_state.group_of[ids[i]] = found.group
  end
end

-- Give the lanes of a group their turn that were parked: all, or those that only a freed slot or a call
-- opens.
local function unpark(group, later)
  for _, digits in ipairs(redis.call('ZRANGE', levels_key, 0, -1)) do
    local turn = redis.call('ZSCORE', turns_key(digits), group)
    if turn and tonumber(turn) > (later or read_clock()) then
      redis.call('ZADD', turns_key(digits), read_clock(), group)
    end
  end
end

-- Free the slots of items whose leases have ended. `note_groups` has noted their groups.
local function free_slots(ids)
  local by_group = {}
  for _, id in ipairs(ids) do
    local group = lane_state.group_of[id]
    if group then
      by_group[group] = by_group[group] or {}
      table.insert(by_group[group], id)
    end
  end
  for group, members in pairs(by_group) do
    in_chunks('ZREM', prefix .. ':running:' .. group, members)
    if controlled and read_control().any_group then unpark(group, PARKED) end
  end
  if controlled and read_control().shared then free_shared(ids) end
end

-- Return the functions for lanes. They are created only in a call that needs them.
local function lanes()
  if not lane_state then
    -- stylua: ignore
    lane_state = {
      kept_keys = {}, group_of = {}, turns_key = turns_key, lane_of = lane_of,
      split_member = split_member, members_of = members_of, enter_index = enter_index,
      keep_key = keep_key, waits_in = waits_in, drop_key = drop_key, enter_lanes = enter_lanes,
      leave_lanes = leave_lanes, read_alarm = read_alarm, promote = promote, note_groups = note_groups,
      free_slots = free_slots, unpark = unpark, begin_control = begin_control, options_of = options_of,
      queue_gate = queue_gate, read_control = read_control, paused_until = paused_until, closed_gate = closed_gate,
      open_gate = open_gate, narrow_rate = narrow_rate, narrow_slots = narrow_slots, note_rates = note_rates,
    }
  end
  return lane_state
end
