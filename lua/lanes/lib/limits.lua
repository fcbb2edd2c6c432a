-- Decide how many items the limits and pauses of a queue permit to be leased now.
--
-- An item with a weight is leased when a rate permits one, and then uses as many of it as its weight, but no
-- more than the burst: what comes after it waits. So a heavy item waits no longer than others, and nothing
-- overtakes it. Of a concurrency it is one.
--
-- They are the fields of the hash `:control`, see `set_limits` and `pause_queue`. A rate is GCRA: the sorted
-- set `:rates` has for each group ('': the whole queue) until when, in µs, its permits are used up.
-- `:running:<group>` has the leased items of a group, with a time at which an entry is checked against
-- `deadlines`, which is the truth. So an interruption loses no slot for ever.
--
-- Limits that several queues share are in `<name>:limits`, `<name>:rates` and `<name>:running`, whose
-- members are the queue's name, NUL and an id; `<name>:queues` has the queues, and since when each waits
-- for a slot (inf: it does not).
--
-- Needs: prefix, deadlines, now_ms
-- Gives: queue_gate, read_control, free_shared, paused_until, closed_gate, open_gate,
--   narrow_rate, narrow_slots, note_rates
-- Uses: control_key (RARE_KEYS), HEAVY, QUEUE_END (encodings), in_chunks (keys), lane_state (lane_state),
--   append (lists), newer_format (newer), read_clock (read_clock)

-- Return the time in µs, which decides about rates.
local function read_us()
  if not lane_state.us and now_ms then
    lane_state.us = now_ms * 1000
  elseif not lane_state.us then
    local time = redis.call('TIME')
    lane_state.us = time[1] * 1000000 + time[2]
  end
  return lane_state.us
end

-- Return the limits of the queue itself and those of every group.
local function read_control()
  if not lane_state.control then
    local fields = { 'paused', 'rate', 'concurrency', 'shared', 'rate/*', 'concurrency/*', 'ageing' }
    local values, own = redis.call('HMGET', control_key, unpack(fields)), 0
    lane_state.control = {}
    for i, field in ipairs(fields) do
      lane_state.control[field] = values[i] or nil
      own = own + (values[i] and 1 or 0)
    end
    lane_state.control.any_own = redis.call('HLEN', control_key) > own
    lane_state.control.any_group = lane_state.control.any_own or values[5] or values[6]
  end
  return lane_state.control
end

-- Return until when a pause lasts (ms; math.huge: without an end); nil: there is none now.
local function paused_until(text)
  local till = text and string.match(text, '^%S+')
  -- What cannot be read is no pause, and no limit.
  till = till == 'inf' and math.huge or tonumber(string.match(till or '', '^%d+$') or '')
  return till and till > read_clock() and till or nil
end

-- Return how many items a rate permits now. `till`: until when its permits are used up, or false. `use` is
-- called with how many were leased, and what `note_rates` is to write; `next_at` is when, in ms, the first
-- after these is permitted.
local function rate_gate(key, name, interval, burst, till)
  local at = read_us()
  local full = at + interval * burst
  local used, heavy = math.max(at, tonumber(till or 0)), name .. HEAVY
  local is_heavy = used > full and redis.call('ZSCORE', key, heavy) == redis.call('ZSCORE', key, name)
  local latest = is_heavy and full + interval * (burst - 1) or full
  if used > latest then
    -- Never later than a full use of the burst, but for what a heavy item has used: the limit was changed, or
    -- the clock was set back. It is written, or it would stay a full use from now for ever.
    used = latest
    redis.call('ZADD', key, used, name)
  end
  local gate = { room = math.floor((full - used) / interval), burst = burst, extra = 0 }
  function gate.next_at(spent) return math.ceil((used + interval * (spent + 1 - burst)) / 1000) end
  function gate.use(spent, noted)
    local next_till = used + interval * (spent + gate.extra)
    noted[key] = noted[key] or {}
    append(noted[key], next_till, name)
    if gate.extra > 0 then append(noted[key], next_till, heavy) end
  end
  return gate
end

-- Write what the gates of rates have noted by `use`, and drop as many entries whose time has passed, and 10.
local function note_rates(noted)
  for key, entries_ in pairs(noted) do
    local old = redis.call('ZRANGEBYSCORE', key, '-inf', read_us(), 'LIMIT', 0, 10 + #entries_ / 2)
    in_chunks('ZREM', key, old)
    in_chunks('ZADD', key, entries_)
  end
end

-- Return how many slots of a limit are free. Entries whose time has come are checked first, and dropped if
-- their item is not leased. `shared`: an entry begins with the name of its queue.
local function free_of(key, limit, shared)
  local number = redis.call('ZCARD', key)
  if number < limit then return limit - number end
  for _, member in ipairs(redis.call('ZRANGEBYSCORE', key, '-inf', read_clock(), 'LIMIT', 0, 100)) do
    local cut = shared and string.find(member, QUEUE_END, 1, true)
    local there = cut and string.sub(member, 1, cut - 1) or prefix
    if not newer_format(there) then -- else its own workers check it
      local lease_end = redis.call('ZSCORE', there .. ':deadlines', string.sub(member, (cut or 0) + 1))
      -- A lease of this queue may be renewed until it is reclaimed, which frees its slot.
      if lease_end and (not cut or tonumber(lease_end) > read_clock()) then
        redis.call('ZADD', key, lease_end, member)
      else
        number = number - redis.call('ZREM', key, member)
      end
    end
  end
  return math.max(0, limit - number)
end

-- Return a gate, which says how many items may be leased now.
--
-- Fields of `gate`:
--   room       number    how many items may be leased now (lanes, limits)
--   rates      list      the gates of its rates; none in that of one rate (limits)
--   next_at    function  called with how many are used: when time alone permits the next, in ms (limits)
--   use        function  of one rate: note how many were leased (limits)
--   used       number    how many of the room are taken (lease_lanes, limits)
--   burst      number    of one rate: what the weight of an item is at most (limits)
--   extra      number    of one rate: by how much the weights of what is used exceed its number (limits)
--   count      function  called with 1 or -1 and a weight: use it, or use it no more (limits)
--   seen       table     id → true: it was met in a lane of the group (lease_lanes)
--   own_room   number    what the queue's own limits permit, if it shares slots (limits)
--   pool_free  number    how many shared slots are free; nil: their number is not limited (lanes, limits)
local function open_gate()
  local gate = { rates = {}, room = math.huge, used = 0 }
  function gate.next_at(spent)
    local till
    for _, one in ipairs(gate.rates) do
      local all = spent + one.extra
      till = all >= one.room and math.max(till or 0, one.next_at(all)) or till
    end
    return till
  end
  function gate.count(number, weight)
    gate.used = gate.used + number
    for _, rated in ipairs(gate.rates) do
      rated.extra = rated.extra + number * (math.min(rated.burst, weight) - 1)
      gate.room = math.min(gate.room, rated.room - rated.extra)
    end
  end
  return gate
end

-- Return a gate without room; time alone opens it at `till`, unless that is infinite.
local function closed_gate(till)
  local gate = open_gate()
  gate.room = 0
  function gate.next_at() return till < math.huge and till or nil end
  return gate
end

-- Narrow a gate by a rate, as text. `till`: until when its permits are used up, if that was read already.
local function narrow_rate(gate, key, name, rate, till)
  local interval, burst = string.match(rate or '', '^([1-9]%d*):([1-9]%d*)$')
  if not interval then return end
  if till == nil then till = redis.call('ZSCORE', key, name) end
  local one = rate_gate(key, name, tonumber(interval), tonumber(burst), till)
  gate.room = math.min(gate.room, one.room)
  gate.rates[#gate.rates + 1] = one
end

-- Narrow a gate by a number of slots, as text; returns how many are free; nil: their number is not limited.
local function narrow_slots(gate, running, limit, shared)
  limit = tonumber(string.match(limit or '', '^[1-9]%d*$') or '')
  if not limit then return nil end
  local free = running and free_of(running, limit, shared) or limit - redis.call('ZCARD', deadlines)
  gate.room = math.min(gate.room, math.max(0, free))
  return free
end

-- Return the gate of the whole queue. `own_room` is what its own limits permit, `pool_free` how many slots
-- are free that it shares (nil: their number is not limited).
local function queue_gate()
  local found = read_control()
  local till, pool = paused_until(found.paused), found.shared
  local gate = till and closed_gate(till) or open_gate()
  if not till then
    narrow_slots(gate, nil, found.concurrency)
    narrow_rate(gate, prefix .. ':rates', '', found.rate)
  end
  if pool then
    local rate, limit = unpack(redis.call('HMGET', pool .. ':limits', 'rate', 'concurrency'))
    gate.own_room = gate.room
    gate.pool_free = narrow_slots(gate, pool .. ':running', limit, true)
    narrow_rate(gate, pool .. ':rates', '', not till and rate)
  end
  return gate
end

-- Free the slots of items of this queue in the limits that it shares. `promote`
-- wakes a queue that waits for one.
local function free_shared(ids)
  local noted = {}
  for i, id in ipairs(ids) do
    noted[i] = prefix .. QUEUE_END .. id
  end
  in_chunks('ZREM', read_control().shared .. ':running', noted)
end
