-- Return the counts of a queue, and for how long its items wait.
--
-- When an item began to wait is not stored. So each call notes the id that was added last, with the
-- time, in `sample`, and finds out which of the ids noted before still wait. As a lane is leased in its
-- order, what waits in it was added after the last of those that were leased, and at the latest when the
-- first of those that wait was noted.
--
-- `sample` holds a JSON object: `at`, the time of the last call; `fence`, the last token then; `all`, whether
-- `by_lane` has all lanes that were not empty then; `by_lane`; `waits`, how long ids waited that were leased;
-- and `found`, when that was found out. In `by_lane` are, by the name of the lane (empty: ids without a level
-- and a group), `ids`, when each was noted (`times`), which token it gets if no other item returns to the
-- front (`tokens`; empty: unknown), and `floor`: all that was added until then was leased (-1: unknown).
--
-- Keys: queue, deadlines, scheduled, ledger, fence, sessions, dead, sample, heartbeats
-- Arguments:
--   prefix      text     the queue's name
--   now_ms      integer  the time; empty: the server's time
--   horizon_ms  integer  for how long to look ahead; empty: not at all
--   note        flag     1: note what waits, if the user may write; else nothing is written
--   every_ms    integer  only if events are counted in the history, and nothing was noted for so long;
--       empty: in any case
-- Reply: the time in ms; how many items are waiting, leased and scheduled, and how many dead letters there
--   are, as in `counts`; the last token; for how many ms the oldest waiting item has waited at least; by how
--   many ms it may be more (-1: unknown); how many of the scheduled items are due, and how many others will
--   be within the time ahead; how many of the leases have expired, and how many others dead workers hold; the
--   pause, rate and concurrency of the queue (see `read_control`; false: none); then how long ids waited that
--   were leased in the last 5 minutes, in ms. With `every_ms`, only whether events are counted: 1 or 0.
-- Cost: O(log n), plus O(1) per noted id and per waiting process; with a dead worker
--   also per lease that is looked at.
-- Limits: if a worker is dead, the 128 leases that expire next are looked at, as it renews none. 128 ids
--   of 33 lanes are noted, and 8 lanes that are new in a call. Above 128, every second id is forgotten, so
--   the older ones are further apart.
-- Uses: control_key, held_key, history_key, lanes_key, levels_key (RARE_KEYS), begin_writes (begin_writes),
--   now (clock), count_waiting (count), ID_AT, LANE_END, LANE_PAST, PLAIN_LANE, ROLLUP_WAITS,
--   TURNS_OF_NO_LEVEL (encodings), foreign_lease_left (foreign), data_key (keys), read_ledger (ledger),
--   append, extend (lists), add_to_rollups, bucket_of (rollup)

local counted = redis.pcall('HGET', history_key, 'rollup') == '1'
-- For how long `sample` is kept (ms): what is left of it says when it was noted.
local sample_ms = 3600000
if every_ms and not (counted and redis.call('PTTL', sample) <= sample_ms - every_ms) then
  return counted and 1 or 0
end
local waiting = count_waiting()
local leased, later = redis.call('ZCARD', deadlines), redis.call('ZCARD', scheduled)
local letters = redis.call('ZCARD', dead)
local newest_token = tonumber(redis.call('GET', fence) or '') or 0
local is_plain = redis.call('EXISTS', levels_key, control_key) == 0
local settings = redis.call('HMGET', control_key, 'paused', 'rate', 'concurrency')
local any_dead = redis.call('ZCOUNT', heartbeats, '-inf', now) > 0
redis.call('HLEN', ledger) -- each key is read before anything is written
local kept_text = redis.call('GET', sample)

-- Return the id that was added to a lane last; nothing: the lane is empty.
local function newest_in(lane)
  if lane == '' then
    return redis.call('LINDEX', redis.call('EXISTS', held_key) == 1 and held_key or queue, 0)
  end
  local last, first = '(' .. string.sub(lane, 1, -2) .. LANE_PAST, '[' .. lane
  local member = redis.call('ZRANGE', lanes_key, last, first, 'BYLEX', 'REV', 'LIMIT', 0, 1)[1]
  return member and string.sub(member, #lane + ID_AT)
end

-- Return whether an id waits: it has data, and is neither scheduled nor leased by any client.
local function is_waiting(id)
  return redis.call('EXISTS', data_key(id)) == 1
    and not redis.call('ZSCORE', scheduled, id)
    and not redis.call('ZSCORE', deadlines, id)
    and not foreign_lease_left(id)
end

-- Return the names of the lanes to look at: those of which ids are noted, and up to 8 others, from each level
-- those whose turn is the next and the last. Also return whether these are all lanes.
local function lanes_to_check(noted)
  local names, seen, total = { '' }, { [''] = true }, 1
  for lane in pairs(noted) do
    names[#names + 1], seen[lane] = lane ~= '' and lane or nil, true
  end
  local most = math.min(33, #names + 8)
  local digits = is_plain and {} or redis.call('ZRANGE', levels_key, 0, -1)
  for _, level in ipairs(digits) do
    total = total + redis.call('ZCARD', prefix .. ':turns:' .. level)
  end
  if redis.call('ZSCORE', prefix .. TURNS_OF_NO_LEVEL, '') then
    total = total - 1 -- ids without a level and a group: the first lane
  end
  for _, place in ipairs({ 0, -1, 1, -2, 2, -3, 3, -4 }) do
    for _, level in ipairs(digits) do
      local group = redis.call('ZRANGE', prefix .. ':turns:' .. level, place, place)[1]
      local lane = group and level .. group .. LANE_END
      if lane and lane ~= PLAIN_LANE and not seen[lane] and #names < most then
        names[#names + 1], seen[lane] = lane, true
      end
    end
  end
  return names, #names >= total
end

-- Return when an id of a lane was leased that was completed since: estimated by the tokens given since the
-- last call, or else in the middle between the two calls.
local function leased_at(noted, i, state)
  local from, part = math.max(noted.times[i], state.at), 0.5
  local before, token = tonumber(state.fence), tonumber(noted.tokens[i])
  if token and newest_token > before then
    part = math.max(0, math.min(1, (token - before) / (newest_token - before)))
  end
  return from + part * math.max(0, now - from)
end

-- Return whether so many tokens were given since an id was noted that it was leased, if each went to the next
-- item. `more`: of them, so many may have gone to items that returned to the front.
local function is_due(noted, i, more)
  local token = is_plain and tonumber(noted.tokens[i])
  return token and newest_token >= token + more
end

-- Return whether an item has ended, other than by being cancelled, which is known for an hour.
local function is_gone(id)
  return redis.call('EXISTS', data_key(id)) == 0 and not redis.call('ZSCORE', prefix .. ':cancelled', id)
end

-- Return how many of the ids of a lane were leased, from the first on, and when, as far as the ledger shows.
local function count_leased(noted)
  local ends = redis.call('ZMSCORE', deadlines, unpack(noted.ids))
  local records = redis.call('HMGET', ledger, unpack(noted.ids))
  local times, count = {}, 0
  for i = 1, #noted.ids do
    local _, _, _, at = read_ledger(records[i])
    if at and at > noted.times[i] then
      times[i], count = at, i
    elseif ends[i] or is_due(noted, i, 1000) then
      count = i
    elseif is_due(noted, i, 0) and is_gone(noted.ids[i]) then
      count = i -- else it may wait, or was added again
    end
  end
  return count, times
end

-- How many waits were noted by this call, by their slots in the history.
local new_waits = {}

-- Note how long an item waited that was leased.
local function note_wait(state, wait)
  state.waits[#state.waits + 1], state.found[#state.found + 1] = wait, now
  local slot = ROLLUP_WAITS + bucket_of(wait)
  new_waits[slot] = (new_waits[slot] or 0) + 1
end

-- Forget the ids of a lane that wait no more, and note how long those waited that were leased.
local function forget_leased(noted, state)
  local count, times = count_leased(noted)
  local gone, ids = count, #noted.ids
  while gone < ids and not is_waiting(noted.ids[gone + 1]) do
    gone = gone + 1
    -- In a lane of a controlled queue, tokens do not show it.
    if not is_plain and newest_token > tonumber(state.fence) and is_gone(noted.ids[gone]) then
      count = gone
    end
  end
  for i = 1, count do
    local wait = (times[i] or leased_at(noted, i, state)) - noted.times[i]
    note_wait(state, math.max(0, math.floor(wait)))
    noted.floor = math.max(noted.floor, noted.times[i])
  end
  local left = { ids = {}, times = {}, tokens = {}, floor = noted.floor }
  for i = gone + 1, ids do
    left.ids[i - gone], left.times[i - gone] = noted.ids[i], noted.times[i]
    left.tokens[i - gone] = noted.tokens[i]
  end
  return left
end

-- Look at a lane; returns what is noted of it, or nothing if it is empty.
local function check_lane(lane, state)
  local noted = state.by_lane[lane]
    or { ids = {}, times = {}, tokens = {}, floor = state.all and state.at or -1 }
  if noted.ids[1] then noted = forget_leased(noted, state) end
  local id, ids = newest_in(lane), #noted.ids
  if not id then return nil end
  -- In `queue` may also be an id that was moved there from its lane, to wake a session.
  local is_moved = not is_plain and redis.call('ZSCORE', prefix .. ':promoted', id)
  local is_known = noted.ids[ids] == id and not is_due(noted, ids, 0)
  if not is_known and not is_moved and is_waiting(id) then
    noted.ids[ids + 1], noted.times[ids + 1] = id, now
    noted.tokens[ids + 1] = is_plain and string.format('%.0f', newest_token + waiting) or ''
  end
  return noted
end

-- Forget every second id but the first and the last of each lane, if more than 128 are noted.
local function thin(noted_lanes)
  local total = 0
  for _, noted in pairs(noted_lanes) do
    total = total + #noted.ids
  end
  for _, noted in pairs(total > 128 and noted_lanes or {}) do
    for _, field in ipairs({ 'ids', 'times', 'tokens' }) do
      local values, left = noted[field], {}
      for i = 1, #values do
        if i % 2 == 1 or i == #values then left[#left + 1] = values[i] end
      end
      noted[field] = left
    end
  end
end

-- Keep the last 64 waits of the last 5 minutes.
local function trim_waits(state)
  local waits, found = {}, {}
  for i = math.max(1, #state.waits - 63), #state.waits do
    if state.found[i] > now - 300000 then
      waits[#waits + 1], found[#found + 1] = state.waits[i], state.found[i]
    end
  end
  state.waits, state.found = waits, found
end

-- Return the state after this call, given that of the last one.
local function next_state(state)
  local number = #state.waits
  local lanes_now = {}
  local names, is_all = lanes_to_check(state.by_lane)
  for _, lane in ipairs(names) do
    lanes_now[lane] = check_lane(lane, state)
  end
  if waiting == 0 and #state.waits == number and newest_token > tonumber(state.fence) then
    -- Items were leased, and none was found waiting.
    note_wait(state, 0)
  end
  thin(lanes_now)
  trim_waits(state)
  state.by_lane, state.all, state.at = lanes_now, is_all, now
  state.fence = string.format('%.0f', newest_token)
  return state
end

-- Return for how long the oldest item has waited at least, and how much more it may be. What is due, and what
-- was leased under a lease that has expired, counts as waiting.
local function oldest_of(state)
  local since, before = now, state.all and now or -math.huge
  for _, noted in pairs(state.by_lane) do
    local first = 1
    while is_due(noted, first, 0) do
      first = first + 1
    end
    since = math.min(since, noted.times[first] or now)
    before = math.min(before, noted.floor >= 0 and noted.floor or -math.huge)
  end
  for _, key in ipairs({ deadlines, scheduled }) do
    local at = tonumber(redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')[2] or '')
    since, before = math.min(since, at or now), math.min(before, at or now)
  end
  return math.floor(now - since), before > -math.huge and math.ceil(since - before) or -1
end

-- Return how many leases, that have not expired, are held by workers whose registration has passed.
local function count_orphaned()
  local count, next_ends = 0, {}
  if any_dead then
    next_ends = redis.call('ZRANGEBYSCORE', deadlines, string.format('(%.0f', now), '+inf', 'LIMIT', 0, 128)
  end
  for _, id in ipairs(next_ends) do
    local holder = redis.pcall('GET', prefix .. ':lease:' .. id) -- a key of another type is no lease
    local alive_until = type(holder) == 'string' and redis.call('ZSCORE', heartbeats, holder)
    count = count + (alive_until and tonumber(alive_until) <= now and 1 or 0)
  end
  return count
end

-- Refuse times and waits that no call can have noted.
local function check_numbers(values, most)
  for _, value in ipairs(values) do
    assert(type(value) == 'number' and value >= 0 and value <= most)
  end
end

-- Return the state that the last call left. Where the server's clock has gone back since, no
-- time has passed: the ages stay.
local function last_state()
  local state = cjson.decode(kept_text or '')
  local back = math.max(0, state.at - now)
  state.at = state.at - back
  for _, noted in pairs(state.by_lane) do
    for i = 1, #noted.times do
      noted.times[i] = noted.times[i] - back
    end
    noted.floor = noted.floor < 0 and -1 or math.max(0, noted.floor - back)
    check_numbers(noted.times, now)
    check_numbers({ math.max(0, noted.floor) }, now)
  end
  for i = 1, #state.found do
    state.found[i] = state.found[i] - back
  end
  check_numbers(state.found, now)
  check_numbers(state.waits, now)
  return state
end

-- Return what to keep, how long items waited, the age of the oldest item, and by how much that may be more.
local function evaluate(last)
  local state = next_state(last)
  return cjson.encode(state), state.waits, oldest_of(state)
end

local is_known, text, waits, age, more = pcall(function() return evaluate(last_state()) end)
if not is_known then -- there is none, or another client has written it
  local first = { at = now, all = false, by_lane = {}, waits = {}, found = {} }
  first.fence, new_waits = string.format('%.0f', newest_token), {}
  text, waits, age, more = evaluate(first)
end
local due = redis.call('ZCOUNT', scheduled, '-inf', now)
local due_soon = redis.call('ZCOUNT', scheduled, '-inf', now + math.max(0, horizon_ms or 0)) - due
local expired = redis.call('ZCOUNT', deadlines, '-inf', now)
local reply = { now, waiting, leased, later, letters, newest_token, age, more }
append(reply, due, due_soon, expired, count_orphaned())
extend(reply, settings)
extend(reply, waits)

-- A full queue must be watched too, and by users who may only read.
if note and pcall(begin_writes) then
  redis.pcall('SET', sample, text, 'PX', sample_ms)
  if counted then add_to_rollups(new_waits, age) end
end
return every_ms and 1 or reply
