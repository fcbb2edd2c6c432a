-- Move ids between the queue and its lanes as it begins and ceases to be controlled.
--
-- Needs: prefix, queue
-- Gives: settle, end_control, limits_changed, right_pause, right_turns, heal_lanes
-- Uses: control_key, held_key, lanes_key, levels_key (RARE_KEYS), controlled (controlled), FROM_PARKED,
--   HEAVY, HELD_PLACE, HIGHEST_LEVEL, LOWEST_LEVEL, PLAIN_LANE, TO_PARKED (encodings), in_chunks (keys),
--   lanes (lanes), reversed (lists), read_clock (read_clock)

-- Move up to `limit` ids from the right end of a list into the lanes: those that a script has promoted, and
-- those with a level or a group, to the front. One that waits in its lane already, as another client has
-- pushed it once more, stays there. Returns how many.
local function settle(list, limit)
  local ids = reversed(redis.call('LRANGE', list, -limit, -1))
  if #ids == 0 then return 0 end
  local promoted, found = redis.call('ZMSCORE', prefix .. ':promoted', unpack(ids)), lanes().options_of(ids)
  local first, last, marked = {}, {}, {}
  for i, id in ipairs(ids) do
    local name = lanes().lane_of(found[i])
    if promoted[i] or (name ~= PLAIN_LANE and not lanes().waits_in(name, id)) then
      first[#first + 1], marked[#marked + 1] = id, promoted[i] and id or nil
    elseif name == PLAIN_LANE then
      last[#last + 1] = id
    end
  end
  lanes().enter_lanes(first, true)
  lanes().enter_lanes(last, false)
  for _, id in ipairs(last) do
    lanes().keep_key(id, HELD_PLACE, 'PX', 86400000) -- a day
  end
  in_chunks('ZREM', prefix .. ':promoted', marked)
  redis.call('LTRIM', list, 0, -#ids - 1)
  return #ids
end

-- Drop the index of the lanes if no item has a level or a group and, if there are no limits either, make the
-- queue plain again. Returns whether it is plain.
local function end_control()
  local index, is_plain = {}, redis.call('EXISTS', control_key) == 0
  if redis.call('EXISTS', lanes_key) == 1 then
    return false
  elseif is_plain then
    index = { prefix .. ':promoted', prefix .. ':alarm' }
    local is_left = redis.call('EXISTS', held_key, index[1]) > 0 and settle(queue, 500) == 500
    if is_left or redis.call('EXISTS', lanes_key) == 1 then
      return false
    elseif redis.call('EXISTS', held_key) == 1 then
      redis.call('RENAME', held_key, queue)
    end
  elseif redis.call('EXISTS', levels_key) == 0 then
    return false
  end
  for number = HIGHEST_LEVEL, LOWEST_LEVEL do
    index[#index + 1] = lanes().turns_key(number)
  end
  redis.call('UNLINK', unpack(index))
  redis.call('UNLINK', levels_key) -- last: until then the queue is controlled
  controlled = not is_plain
  return is_plain
end

-- Give up to 500 lanes their turn that were parked; returns whether there may be more.
local function unpark_all()
  local left = 500
  for _, digits in ipairs(redis.call('ZRANGE', levels_key, 0, -1)) do
    local key, turns = lanes().turns_key(digits), {}
    local after = string.format('(%.17g', read_clock() + 1)
    for i, group in ipairs(redis.call('ZRANGE', key, after, '+inf', 'BYSCORE', 'LIMIT', 0, left)) do
      turns[2 * i - 1], turns[2 * i] = read_clock(), group
    end
    in_chunks('ZADD', key, turns)
    left = left - #turns / 2
    if left == 0 then return true end
  end
  return false
end

-- Act on limits or pauses that were just changed, of a group or of all; returns whether to call again.
local function limits_changed(group)
  local is_left = false
  if redis.call('EXISTS', control_key) == 1 then
    lanes().begin_control()
    if redis.call('HEXISTS', control_key, 'rate') == 0 then
      redis.call('ZREM', prefix .. ':rates', '', HEAVY)
    end
  else
    redis.call('UNLINK', prefix .. ':rates')
  end
  if group then
    lanes().unpark(group)
  else
    is_left = unpark_all()
  end
  redis.call('UNLINK', prefix .. ':alarm')
  if controlled and not end_control() then lanes().promote() end
  return is_left
end

-- Repair a pause that begins in the future: the clock has been set back since. It lasts as
-- long, from now on. Only one that was given as a duration: the time at which it began has a
-- leading 0. Returns whether it was so.
local function right_pause(field, text)
  local lasts_till, began, of_pause = string.match(text or '', '^(%d+) (0%d+)(.*)$')
  if not began or tonumber(began) <= read_clock() + 1000 then return false end
  lasts_till = read_clock() + tonumber(lasts_till) - tonumber(began)
  text = string.format('%.0f 0%.0f', lasts_till, read_clock()) .. of_pause
  redis.call('HSET', control_key, field, text)
  local group = string.match(field, '/(.*)$')
  if group then lanes().unpark(group) end
  return true
end

-- Give levels their turn, and their lanes, whose time lies ahead: they were served before the clock
-- was set back. Only 500 lanes of a level in a call; leasing puts those later again that have to wait.
-- Also repair the queue's pause.
local function right_turns()
  right_pause('paused', redis.call('HGET', control_key, 'paused'))
  local found = redis.call('ZRANGEBYSCORE', levels_key, read_clock() + 1000, '+inf')
  for _, digits in ipairs(found) do
    local key, turns = lanes().turns_key(digits), {}
    local after = string.format('(%.0f', read_clock() + 1000)
    for i, group in ipairs(redis.call('ZRANGE', key, after, TO_PARKED, 'BYSCORE', 'LIMIT', 0, 500)) do
      turns[2 * i - 1], turns[2 * i] = read_clock(), group
    end
    in_chunks('ZADD', key, turns)
    if #turns < 1000 then redis.call('ZADD', levels_key, 'XX', read_clock(), digits) end
  end
end

-- Look at lanes again that were parked, in case an interruption lost the slot that was freed for them; and
-- enter some lanes into the index, in case another client has removed it.
local function heal_lanes()
  right_turns()
  for _, member in ipairs(redis.call('ZRANDMEMBER', lanes_key, 20)) do
    lanes().enter_index((lanes().split_member(member)))
  end
  for _, digits in ipairs(redis.call('ZRANGE', levels_key, 0, -1)) do
    local key = lanes().turns_key(digits)
    -- stylua: ignore
    for _, group in ipairs(redis.call('ZRANGE', key, FROM_PARKED, '+inf', 'BYSCORE', 'LIMIT', 0, 100)) do
      redis.call('ZADD', key, read_clock(), group)
    end
  end
end
