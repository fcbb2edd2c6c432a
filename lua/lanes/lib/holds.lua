-- Give places of a limit that handlers hold by name: first come, first served.
--
-- The limits are fields of `:holds`: `concurrency/<name>` and `rate/<name>`, as those of `set_limits`. In
-- `:holders:<name>` are the tickets that have a place, each with its end: so a process that dies
-- leaves no place taken. In `:hold_line:<name>` are those that wait, by their arrival. A place that becomes
-- free is given to the first of them for `grace_ms`, and its session is sent `turn <ticket>`; one that has
-- died costs that time.
--
-- A ticket is `<weight> <session>#<number>`. Its weight is what it uses of the rate, at most the burst.
--
-- Needs: prefix, now_ms
-- Gives: holders_of_name, line_of_name, give_places, drop_ended_holds
-- Uses: in_chunks (keys), read_clock (read_clock)

local grace_ms = 5000
-- The longest time for which a place is held without a renewal: more is a step of the clock.
local longest_hold = 3600000

local function holders_of_name(name) return prefix .. ':holders:' .. name end
local function line_of_name(name) return prefix .. ':hold_line:' .. name end

-- Have a key live for at least so many ms.
local function live_for(key, ms)
  if redis.call('PTTL', key) < ms then redis.call('PEXPIRE', key, string.format('%.0f', ms)) end
end

-- Drop the holders of a name whose time has ended, a bounded number.
local function drop_ended_holds(name)
  local key, at = holders_of_name(name), read_clock()
  in_chunks('ZREM', key, redis.call('ZRANGEBYSCORE', key, '-inf', at, 'LIMIT', 0, 500))
  for _, late in
    ipairs(redis.call('ZRANGEBYSCORE', key, at + longest_hold + grace_ms, '+inf', 'LIMIT', 0, 100))
  do
    redis.call('ZADD', key, at + longest_hold, late)
  end
end

-- Return the time in µs, which decides about rates.
local function hold_us()
  if now_ms then return now_ms * 1000 end
  local time = redis.call('TIME')
  return time[1] * 1000000 + time[2]
end

-- Return how many permits a rate gives now, a function that notes how many were used, and one that returns
-- when so many are permitted, in ms. As `lanes/lib/limits` has it.
local function hold_rate(name, interval, burst)
  local key, at = prefix .. ':hold_rates', hold_us()
  local full = at + interval * burst
  local stored = tonumber(redis.call('ZSCORE', key, name) or 0)
  local used = math.min(full, math.max(at, stored))
  -- Or it would stay a full use from now for as long as the rate of before takes.
  if stored > full then redis.call('ZADD', key, full, name) end
  local function use(spent)
    redis.call('ZADD', key, used + interval * spent, name)
    live_for(key, (used + interval * spent - at) / 1000 + 1000)
  end
  local function next_of(spent) return math.ceil((used + interval * (spent - burst)) / 1000) end
  return math.floor((full - used) / interval), use, next_of
end

-- Give what is free to those that wait; `own` gets its place for `for_ms`. Returns whether the name has
-- limits, and when, in ms, time alone may give the next place; nil: none waits.
local function give_places(name, own, own_ms)
  local limit, rate = unpack(redis.call('HMGET', prefix .. ':holds', 'concurrency/' .. name, 'rate/' .. name))
  if not (limit or rate) then return false end
  local holders, line, spent = holders_of_name(name), line_of_name(name), 0
  local interval, burst = string.match(rate or '', '^([1-9]%d*):([1-9]%d*)$')
  local room, use, next_of = math.huge, nil, nil
  burst = tonumber(burst or math.huge)
  if interval then
    room, use, next_of = hold_rate(name, tonumber(interval), burst)
  end
  for _ = 1, 500 do
    local first = redis.call('ZRANGE', line, 0, 0)[1]
    if not first then return true end
    local has_place = redis.call('ZSCORE', holders, first) -- as an interruption left it in both
    if not has_place and limit and redis.call('ZCARD', holders) >= (tonumber(limit) or math.huge) then
      return true, tonumber(redis.call('ZRANGE', holders, 0, 0, 'WITHSCORES')[2])
    end
    local weight = math.min(burst, tonumber(string.match(first, '^%d+') or 1))
    if not has_place and room < spent + weight then return true, next_of(spent + weight) end
    if not has_place then
      spent = spent + weight
      if use then use(spent) end -- first: an interruption gives none too many
      local ms = first == own and own_ms or grace_ms
      redis.call('ZADD', holders, read_clock() + ms, first)
      live_for(holders, ms)
    end
    redis.call('ZREM', line, first)
    if first ~= own then
      local session = string.match(first, ' (.*)#%d+$') or ''
      redis.pcall('PUBLISH', prefix .. ':push:' .. session, 'turn ' .. first)
    end
  end
  return true, read_clock()
end
