-- Lease from a controlled queue: choose what its lanes and limits permit. One concept, so this file is long.
--
-- Needs: prefix, queue, ledger
-- Gives: lease_lanes
-- Uses: held_key, lanes_key, levels_key (RARE_KEYS), begin_writes (begin_writes), end_control, settle
--   (control), ID_AT, LANE_END, NO_LEVEL, PARKED, PLAIN_LANE, PLAIN_LEVEL, QUEUE_END, TOKEN_LIMIT, TO_PARKED,
--   TURNS_PER_MS (encodings), is_ours (foreign), complete_at, gathering (gathering), group_gates
--   (group_gate), first_end (heads), data_key, in_chunks (keys), lanes (lanes), choose, chosen (lease),
--   append, reversed (lists), check_processing (processing), read_clock (read_clock)

-- Note that items are leased: before that, so that an interruption gives none too many. `by_group` has the
-- ids of each group, as ZADD takes them; `till` is when their leases end.
local function note_use(gate, gates, ids, by_group, till)
  local used = {}
  for _, rate in ipairs(gate.rates) do
    rate.use(#ids, used)
  end
  local pool, noted = lanes().read_control().shared, {}
  for i = 1, pool and #ids or 0 do
    noted[2 * i - 1], noted[2 * i] = till, prefix .. QUEUE_END .. ids[i]
  end
  in_chunks('ZADD', pool and pool .. ':running', noted)
  for group, members in pairs(by_group) do
    for _, rate in ipairs(gates[group] and gates[group].rates or {}) do
      rate.use(#members / 2, used)
    end
    in_chunks('ZADD', prefix .. ':running:' .. group, members)
  end
  lanes().note_rates(used)
end

-- Begin to choose: read what the limits of the queue permit, and the levels.
local function new_plan()
  local gate = lanes().queue_gate()
  local plan = { gate = gate, gates = {}, levels = {}, opened = {}, passed = {}, examined = 0 }
  local any_held = redis.call('EXISTS', held_key) == 1
  if redis.call('EXISTS', lanes_key) == 0 then
    -- stylua: ignore
    plan.levels[1] = any_held and { digits = PLAIN_LEVEL, level = 0, served = read_clock(), alone = true }
      or nil
  else
    if any_held then lanes().enter_index(PLAIN_LANE) end
    local found = redis.call('ZRANGE', levels_key, 0, -1, 'WITHSCORES')
    for i = 1, #found, 2 do
      -- stylua: ignore
      plan.levels[#plan.levels + 1] =
        { digits = found[i], level = NO_LEVEL - tonumber(found[i]), served = tonumber(found[i + 1]) }
    end
  end
  for _, level in ipairs(plan.levels) do
    level.admitted, level.passed, level.line, level.first, level.last = 0, 0, {}, 1, 0
    level.fresh, level.next, level.turns = {}, 1, lanes().turns_key(level.digits)
  end
  return plan
end

-- Put a lane later, whose group may not be served now.
local function park(plan, level, group, gate)
  local till = gate.next_at(gate.used)
  local after = math.max(read_clock(), level.served) + 1 / TURNS_PER_MS
  plan.later = till and math.min(plan.later or till, till) or plan.later
  redis.call('ZADD', level.turns, till and math.max(till, after) or PARKED + read_clock(), group)
end

local state

-- Drop what was read of lanes and does not wait: it would take slots of the group, and others would be
-- passed over.
local function keep_waiting(read)
  local ids, keys, at = {}, {}, 0
  for _, lane in ipairs(read) do
    for _, one in ipairs(lane.buffer) do
      ids[#ids + 1], keys[#keys + 1] = one.id, data_key(one.id)
    end
  end
  if #ids == 0 then return end
  local scores = first_end and redis.call('ZMSCORE', deadlines, unpack(ids)) or {}
  local all_exist = redis.call('EXISTS', unpack(keys)) == #keys
  for _, lane in ipairs(read) do
    local kept = {}
    for _, one in ipairs(lane.buffer) do
      at = at + 1
      local is_double = lane.gate.seen[one.id] or is_ours(scores[at])
      if is_double or not (all_exist or redis.call('EXISTS', keys[at]) == 1) then
        state.dropped[#state.dropped + 1] = one
      else
        kept[#kept + 1], lane.gate.seen[one.id] = one, true
      end
    end
    lane.buffer = kept
  end
end

-- Read the next members of a lane, or ids of `held`; returns whether there are any. Each is a table with the
-- lane, the id and, unless it is held, the member.
local function refill(lane)
  for _ = 1, 5 do
    local wanted = lane.wanted
    lane.wanted = math.min(250, 4 * wanted)
    lane.at = 1
    local found
    local is_held = lane.name == PLAIN_LANE
    if is_held then
      found = reversed(redis.call('LRANGE', held_key, -lane.read - wanted, -lane.read - 1))
    else
      found = lanes().members_of(lane.name, lane.read, wanted)
    end
    for i, member in ipairs(found) do
      local id = is_held and member or string.sub(member, #lane.name + ID_AT)
      -- With room for what is set next, as a table that grows costs more.
      found[i] =
        { lane = lane, id = id, member = not is_held and member, turn_before = false, weight = false }
    end
    lane.buffer, lane.read = found, lane.read + #found
    if not (lane.gate and lane.buffer[1]) then return lane.buffer[1] end
    keep_waiting({ lane })
    if lane.buffer[1] then return true end
  end
  state.is_left = true -- nothing but doubles: call again
end

-- Look at a lane whose turn has come: drop it from the index if it is empty, park it if it still gathers.
-- Returns the lane, or nothing.
local function read_lane(plan, level, group, wanted)
  local size, wait = gathering(group)
  -- stylua: ignore
  local lane = { level = level, group = group, name = level.digits .. group .. LANE_END, read = 0,
    wanted = size or wanted, at = 1, buffer = false, gate = false, batch = false, turn = false,
    is_parked = false, is_stopped = false }
  plan.examined = plan.examined + 1
  if not refill(lane) then
    redis.call('ZREM', level.turns, group)
    return nil
  end
  if size then
    local _, place = lanes().split_member(lane.buffer[1].member)
    local at = #lane.buffer < size and complete_at(place, wait) or 0
    if at > read_clock() then
      park(plan, level, group, lanes().closed_gate(at))
      return nil
    end
    lane.batch = true
  end
  return lane
end

-- Read the gates of groups that this call has not met.
local function read_gates(plan, read)
  local unknown = {}
  for _, lane in ipairs(read) do
    if plan.gates[lane.group] == nil then
      unknown[#unknown + 1], plan.gates[lane.group] = lane.group, false
    end
  end
  for i, gate in ipairs(group_gates(unknown)) do
    plan.gates[unknown[i]] = gate
    if gate then gate.seen = {} end
  end
end

-- Look at lanes whose turn has come, and read together what their groups permit: those are parked that may
-- not be served.
local function open_lanes_of(plan, level, groups, wanted)
  local read, gated = {}, {}
  for _, group in ipairs(groups) do
    read[#read + 1] = read_lane(plan, level, group, wanted)
  end
  read_gates(plan, read)
  for _, lane in ipairs(read) do
    local gate = plan.gates[lane.group]
    if gate and gate.used >= gate.room then
      park(plan, level, lane.group, gate)
      lane.is_parked = true
    elseif gate then
      lane.gate = gate
      if lane.batch then
        keep_waiting({ lane }) -- it may have read hundreds
      else
        gated[#gated + 1] = lane
      end
    end
  end
  keep_waiting(gated)
  for _, lane in ipairs(read) do
    if not lane.is_parked and (lane.buffer[1] or refill(lane)) then
      level.admitted = level.admitted + 1
      level.fresh[level.admitted] = lane
      plan.opened[#plan.opened + 1] = lane
    elseif not lane.is_parked then
      level.passed = level.passed + 1 -- the next lease finds it empty
    end
  end
end

-- Look at the next lanes of a level; returns whether there were any.
local function open_lanes(plan, level, wanted)
  if level.seen then
    return false
  elseif level.alone then
    level.seen = true
    open_lanes_of(plan, level, { '' }, wanted)
    return true
  end
  local till = math.max(read_clock(), level.served)
  local most = math.min(wanted, 50)
  -- stylua: ignore
  local groups = redis.call('ZRANGE', level.turns, '-inf', level.till or till, 'BYSCORE',
    'LIMIT', level.admitted + level.passed, most)
  level.till = level.till or till
  level.seen = #groups < most
  local number = level.seen and #groups or redis.call('ZCARD', level.turns)
  open_lanes_of(plan, level, groups, math.ceil(wanted / math.max(1, number)))
  return #groups > 0
end

-- Return the lane of a level that is served next: those that were not served by this call come first.
local function next_lane(plan, level, wanted)
  while level.next > level.admitted and not level.seen and plan.examined < 200 do
    level.seen = not open_lanes(plan, level, wanted) or level.seen
  end
  if level.next <= level.admitted then
    level.next = level.next + 1
    return level.fresh[level.next - 1]
  end
  level.first = level.first + 1
  return level.line[level.first - 1]
end

-- Take a member of a lane, unless it has none that may be leased.
local function take_one(plan, level, lane, picked)
  local gate = lane.gate
  local is_open = not lane.is_stopped and (not gate or gate.used < gate.room)
  if not (is_open and plan.gate.used < plan.gate.room and (lane.at <= #lane.buffer or refill(lane))) then
    return false
  end
  local one = lane.buffer[lane.at]
  picked[#picked + 1], one.turn_before = one, lane.turn
  lane.at = lane.at + 1
  level.served = math.max(read_clock(), level.served) + 1 / TURNS_PER_MS
  lane.turn = level.served
  plan.gate.used = plan.gate.used + 1
  if gate then gate.used = gate.used + 1 end
  return true
end

-- Take what a lane has gathered. If that is more than the call has asked for, a call for whole batches takes
-- it if it has taken nothing, and others take one item. Returns whether it was taken, or may be by the next
-- call.
local function take_batch(plan, level, lane, left, picked)
  local is_over = #lane.buffer > left
  if is_over and not state.whole then return false end
  plan.more = true -- what is left of the lane may be complete, too
  if is_over and #picked + #chosen > 0 then
    level.done = true
    return true
  end
  for _ = 1, #lane.buffer do
    take_one(plan, level, lane, picked)
  end
  return true
end

-- Take up to `quota` ids from a level, one from each lane in turn.
local function take(plan, level, quota, picked)
  local goal = #picked + quota
  while #picked < goal do
    local lane = next_lane(plan, level, goal - #picked)
    if not lane then
      level.done = true
      plan.more = plan.more or not level.seen
      return
    end
    local is_taken = lane.batch and take_batch(plan, level, lane, goal - #picked, picked)
    if not is_taken and take_one(plan, level, lane, picked) then
      level.last = level.last + 1
      level.line[level.last] = lane
    end
    if level.done then return end
  end
end

-- Return up to `wanted` of what is leased next, as far as the limits permit: for each the lane and the
-- member. The highest level comes first. With ageing, a level counts as one more for each such time in which
-- it was not served, until it is.
local function pick(plan, wanted)
  local ageing = tonumber(string.match(lanes().read_control().ageing or '', '^[1-9]%d*$') or '')
  local picked = {}
  wanted = math.min(wanted, plan.gate.room - plan.gate.used)
  while #picked < wanted do
    local best, best_rank
    for _, level in ipairs(plan.levels) do
      local waited = ageing and math.floor((read_clock() - level.served) / ageing) or 0
      local rank = level.level + math.max(0, waited)
      local is_older = best and rank == best_rank and level.served < best.served
      if not level.done and (not best or rank > best_rank or is_older) then
        best, best_rank = level, rank
      end
    end
    if not best then break end
    if state.one_level and plan.last and best.digits ~= plan.last and #picked + #chosen > 0 then
      state.next_level = best.digits
      break
    end
    plan.last, state.next_level = best.digits, nil
    take(plan, best, best_rank > best.level and 1 or wanted - #picked, picked)
  end
  return picked
end

-- Count what was picked and is not leased as not used. If its group had no more room, other lanes of
-- the group may have been passed over for it: `end_lanes` gives them their turn. What was left out for
-- weights may be leased by the next call.
local function unpick(plan, one)
  local gate = one.lane.gate
  state.is_left = state.is_left or one.weight or plan.any_stopped
  plan.gate.count(-1, one.weight or 1)
  if gate then
    if gate.used >= gate.room then plan.passed[one.lane.group] = true end
    gate.count(-1, one.weight or 1)
  end
end

-- Count what was picked by its weight, and leave out what a rate does not permit after that: the lanes keep
-- their turns.
local function weigh(plan, picked)
  local any, kept, total = false, {}, plan.gate
  for _, one in ipairs(picked) do
    any = any or one.weight
  end
  if not any then return picked end
  for _, one in ipairs(picked) do
    total.count(-1, 1)
    if one.lane.gate then one.lane.gate.count(-1, 1) end
  end
  for _, one in ipairs(picked) do
    local lane, gate = one.lane, one.lane.gate or total
    if total.used < total.room and gate.used < gate.room then
      kept[#kept + 1] = one
      total.count(1, one.weight or 1)
      if gate ~= total then gate.count(1, one.weight or 1) end
    else
      if not lane.is_stopped then
        lane.is_stopped, lane.turn, plan.any_stopped = true, one.turn_before, true
      end
      -- Other lanes of its group may have been passed over for it.
      if gate.used < gate.room then plan.passed[lane.group] = true end
    end
  end
  return kept
end

-- Note what is leased now, before the leases are written: the use of limits, and the
-- turns. `till`: when the leases end.
local function commit_lanes(till)
  local plan, ids, by_group = state.plan, {}, {}
  for i, one in ipairs(state.leased) do
    local group = one.lane.group
    local members = by_group[group]
    ids[i] = one.id
    if members then
      members[#members + 1], members[#members + 2] = till, one.id
    elseif group ~= '' then
      by_group[group] = { till, one.id }
    end
  end
  note_use(plan.gate, plan.gates, ids, by_group, till)
  local turns, levels = {}, {}
  for _, lane in ipairs(plan.opened) do
    local level, gate = lane.level, lane.gate
    turns[level] = turns[level] or {}
    if gate and gate.used >= gate.room then
      park(plan, level, lane.group, gate)
    elseif lane.turn then
      append(turns[level], lane.turn, lane.group)
    end
    levels[level] = levels[level] or lane.turn
  end
  for level in pairs(levels) do
    if not level.alone then
      in_chunks('ZADD', level.turns, turns[level])
      redis.call('ZADD', levels_key, level.served, level.digits)
    end
  end
end

-- Return when, in ms, time alone permits more; nil: never, or now, or nothing waits.
local function next_permit(plan)
  local gate = plan.gate
  if redis.call('EXISTS', lanes_key, held_key) == 0 then
    return nil
  elseif gate.used >= gate.room then
    return gate.next_at(gate.used)
  end
  local soonest = plan.later or math.huge
  for _, level in ipairs(plan.levels) do
    local after = string.format('(%.17g', math.max(read_clock(), level.served))
    -- stylua: ignore
    local turn = redis.call('ZRANGE', level.turns, after, TO_PARKED, 'BYSCORE', 'LIMIT', 0, 1, 'WITHSCORES')
    soonest = math.min(soonest, tonumber(turn[2] or math.huge))
  end
  return soonest < math.huge and math.ceil(soonest) or nil
end

-- Have a session ask again when time permits more, unless another does. Returns in how many
-- ms, and whether it is the one.
local function claim_alarm(holder, at)
  local covered, who = lanes().read_alarm(at or 0)
  if who == holder and not (at and covered) then redis.call('UNLINK', prefix .. ':alarm') end
  if not at or (covered and who ~= holder) then return -1, false end
  -- Another client may have written the pause that ends then.
  local wait = math.min(math.max(1, at - read_clock()), TOKEN_LIMIT)
  local is_registered = redis.call('ZSCORE', prefix .. ':sessions', holder)
  if is_registered then
    local value = string.format('%.0f ', at) .. holder
    redis.call('SET', prefix .. ':alarm', value, 'PX', string.format('%.0f', wait + 86400000))
  end
  return wait, is_registered
end

-- Put what is in the queue, and in an inbox, into the lanes. Returns whether the queue is controlled
-- still; then call `choose_in_lanes`.
local function begin_lanes(inbox_)
  -- Read before anything is written, as all keys are.
  local queued, sent = redis.call('LLEN', queue), inbox_ and redis.call('LLEN', inbox_) or 0
  redis.call('HLEN', ledger)
  check_processing()
  begin_writes()
  local moved = sent > 0 and settle(inbox_, 500) or 0
  state.is_left = queued > 0 and settle(queue, 500) == 500 or moved == 500
  if end_control() then return false end
  state.plan = new_plan()
  state.leased, state.dropped, state.ghosts = {}, {}, {}
  return true
end

-- Sort out those picked whose options say another lane, as they were replaced, or cancelled and added again:
-- put them there, where the next call finds them. Returns the others, as far as their weights permit.
local function keep_right(picked)
  local ids, kept = {}, {}
  for i, one in ipairs(picked) do
    ids[i] = one.id
  end
  local found, wrong = lanes().options_of(ids), {}
  for i, one in ipairs(picked) do
    if lanes().lane_of(found[i]) ~= one.lane.name and redis.call('EXISTS', data_key(one.id)) == 1 then
      wrong[#wrong + 1] = one
      unpick(state.plan, one)
    else
      kept[#kept + 1], one.weight = one, found[i].weight
    end
  end
  for _, one in ipairs(wrong) do
    state.is_left = true
    lanes().enter_lanes({ one.id }, false)
    if one.member then
      state.dropped[#state.dropped + 1] = one
    else
      -- Not with the others, which must be the next ones in `held`.
      one.lane.read = one.lane.read - redis.call('LREM', held_key, -1, one.id)
    end
  end
  return weigh(state.plan, kept)
end

-- Choose up to `total` items, as `choose` does; with `one_level`, only those of one level; with
-- `whole_batch`, a batch that has gathered even if it has more. Returns whether it has stopped before an item
-- whose data exceeds `room`.
local function choose_in_lanes(total, with_data, room, one_level, whole_batch)
  local checked, stop = 0, false
  state.one_level, state.whole = one_level, whole_batch
  while #chosen < total and checked < 1000 and not stop do
    local picked = pick(state.plan, math.min(total - #chosen, 500))
    if #picked == 0 then break end
    checked = checked + #picked
    picked = keep_right(picked)
    local ids, before = {}, #chosen
    for i, one in ipairs(picked) do
      ids[#picked + 1 - i] = one.id
    end
    local used
    used, stop = choose(ids, 0, #ids, with_data, room)
    local at = before + 1
    for i, one in ipairs(picked) do
      if i > used then
        unpick(state.plan, one)
      else
        state.dropped[#state.dropped + 1] = one
        if chosen[at] == one.id then
          state.leased[#state.leased + 1] = one
          at = at + 1
        else
          state.ghosts[#state.ghosts + 1] = one.id
          unpick(state.plan, one)
        end
      end
    end
  end
  state.is_left = state.is_left or state.plan.more or checked >= 1000
  state.is_full = stop or #chosen >= total
  return stop
end

-- Return the level of what is leased next, after a call for one level that has left something; nil: nothing
-- is known. What is above that level may be parked.
local function level_left()
  local from = state.is_full and state.plan.last or state.next_level
  if not from then return nil end
  local member = redis.call('ZRANGE', lanes_key, '[' .. from, '+', 'BYLEX', 'LIMIT', 0, 1)[1]
  local digits = string.match(member or '', '^%d%d')
  local is_above = digits and digits <= PLAIN_LEVEL
  if from <= PLAIN_LEVEL and not is_above and redis.call('EXISTS', held_key) == 1 then
    digits = PLAIN_LEVEL
  end
  return digits and string.format('%.0f', NO_LEVEL - digits)
end

-- Drop from the lanes what was checked, and wake one session if more may be leased. Returns in how many ms
-- time alone permits more (-1: it will not, or another session asks then), whether this session has to ask,
-- whether there is more to do now, and, for a call for one level, that of what is leased next.
local function end_lanes(holder, is_short)
  lanes().leave_lanes(state.dropped)
  for _, id in ipairs(state.ghosts) do
    lanes().drop_key(id)
  end
  for group in pairs(state.plan.passed) do
    lanes().unpark(group)
    state.is_left = true
  end
  local wait, is_mine = claim_alarm(holder, is_short and next_permit(state.plan) or nil)
  local level = state.one_level and level_left()
  state.is_left = state.is_left or (level and not state.is_full)
  if not end_control() then lanes().promote() end
  return wait, is_mine, state.is_left, level
end

-- Return the functions to lease from lanes. They are created only in a call that needs them: `begin`,
-- `choose`, `commit` and `finish` are called in this order.
local function lease_lanes()
  if not state then
    state = {
      begin = begin_lanes,
      choose_in_lanes = choose_in_lanes,
      commit = commit_lanes,
      finish = end_lanes,
    }
  end
  return state
end
