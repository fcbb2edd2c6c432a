-- Check part of the keys that are made with an id or another name, and repair what does not agree.
--
-- Data is not checked here: see `deep_clean_scan`.
--
-- Keys: queue, gone, deadlines, scheduled, sessions, options, errors, dead, schedules, ticks
-- Arguments:
--   prefix   text     the queue's name
--   now_ms   integer  the time; empty: the server's time
--   pattern  text     a glob that matches the keys of this queue
--   cursor   text     "0" in the first call, then the cursor of the last reply
--   count    count    about how many keys of the database to check
-- Reply: the next cursor ("0": done), and a list of repairs: kind, id or name, …. The kinds `wrong_type` and
--   `endless_foreign_lease` are no repairs.
-- Cost: O(count log n).
-- Limits: one SCAN of `count` (at most 1,000) a call; 100 ids of each inbox; 1,000 leased items
--   of groups in all, 100 of each.
-- Uses: control_key, held_key, lanes_key, levels_key (RARE_KEYS), keeps_chunks (chunks), now (clock), OURS,
--   OURS_SIZE, TOKEN_LIMIT (encodings), options_text, read_options (facts), empty_inbox (inbox), data_key,
--   place_in (keys), repaired, repairs (repairs), carried_by (tags)

-- The types of the keys of some families, and for how long those are kept that must
-- have a time to live and have none.
local day = 86400000
-- stylua: ignore
local types = {
  item = 'string', lease = 'string', leased_by_session = 'string', result = 'string', delivered = 'string',
  failed_session = 'string', schedule = 'string', dead = 'hash', inbox = 'list', turns = 'zset',
  running = 'zset', rollup = 'string', emitted = 'stream', logged = 'stream', stream = 'hash',
  holders = 'zset', hold_line = 'zset',
}
-- stylua: ignore
local kept_ms = {
  result = day, delivered = 60000, failed_session = 3600000, set = 7 * day, stream = 7 * day, once = 7 * day,
  rollup = 366 * day, emitted = day, logged = day, holders = 3600000, hold_line = 60000,
}

redis.call('LLEN', queue)
redis.call('ZCARD', deadlines)
redis.call('ZCARD', scheduled)
redis.call('ZCARD', sessions)
redis.call('ZCARD', dead)
redis.call('HLEN', schedules)
redis.call('HLEN', options)
redis.call('ZCARD', ticks)

local any_lanes = redis.call('EXISTS', lanes_key, levels_key, held_key, control_key) > 0
local any_turns = redis.call('EXISTS', lanes_key, levels_key) > 0

-- Return whether an item may wait in a controlled queue, whose ids have a lease key without an end.
local function is_waiting(id)
  return any_lanes
    and redis.call('EXISTS', data_key(id)) == 1
    and not redis.call('ZSCORE', deadlines, id)
    and not redis.call('ZSCORE', scheduled, id)
end

local slots_left = 1000

-- Drop items that are not leased any more, or of another group, which would use slots of a group. Those
-- without options have lost them: nothing would free their slots.
local function check_slots(key, group)
  for _, id in ipairs(redis.call('ZRANGE', key, 0, math.max(99, slots_left - 1))) do
    local text = redis.call('HGET', options, id)
    slots_left = slots_left - 1
    if
      not (redis.call('ZSCORE', deadlines, id) and redis.call('EXISTS', data_key(id)) == 1)
      or (text and read_options(text).group ~= group)
    then
      redis.call('ZREM', key, id)
      repaired('stale_slot', id)
    elseif not text then
      redis.call('HSET', options, id, options_text({ group = group }))
      repaired('lost_group', id)
    end
  end
end

-- Give a lease key of ours the time to live of the lease or of the delay, or remove it if there is neither.
local function end_lease_key(key, id)
  local holder = redis.call('GET', key)
  if string.sub(holder, 1, OURS_SIZE) ~= OURS then
    repaired('endless_foreign_lease', id)
  elseif not place_in(holder) or not is_waiting(id) then
    local score = redis.call('ZSCORE', deadlines, id) or redis.call('ZSCORE', scheduled, id)
    local left = math.floor((tonumber(score) or 0) - now)
    if left > 0 and left <= 31 * day then
      redis.call('PEXPIRE', key, left)
    else
      redis.call('UNLINK', key)
    end
    repaired('no_time_to_live', key)
  end
end

-- List a dead letter that is not in `dead`, and write the numbers in it again that cannot be read.
local function check_dead_letter(key, id)
  if not redis.call('ZSCORE', dead, id) then
    redis.call('ZADD', dead, now, id)
    repaired('unlisted_dead_letter', id)
  end
  if redis.call('HEXISTS', key, 'data') == 0 then repaired('dead_letter_without_data', id) end
  for _, field in ipairs({ 'attempt', 'token' }) do
    local number = redis.call('HGET', key, field)
    if number and not (string.find(number, '^%d+$') and tonumber(number) < TOKEN_LIMIT) then
      redis.call('HSET', key, field, 0)
      repaired('unreadable_dead_letter', id)
    end
  end
end

local function check(key, family, name)
  local is_endless = redis.call('PTTL', key) == -1
  local is_begun = (family == 'emitted' or family == 'logged')
    and (keeps_chunks(redis.call('HGET', options, name), family) or keeps_chunks(carried_by(name), family))
  if is_endless and kept_ms[family] and not is_begun then
    redis.call('PEXPIRE', key, kept_ms[family])
    repaired('no_time_to_live', key)
  elseif is_endless and (family == 'lease' or family == 'leased_by_session') then
    end_lease_key(key, name)
  elseif family == 'turns' and not any_turns then
    redis.call('UNLINK', key)
    repaired('turn_without_lane', key)
  elseif family == 'running' then
    check_slots(key, name)
  elseif family == 'dead' then
    check_dead_letter(key, name)
  elseif family == 'inbox' and not redis.call('ZSCORE', sessions, name) then
    repaired('lost_inbox', name)
    empty_inbox(key, 100)
  elseif family == 'schedule' then
    if not (redis.call('HEXISTS', schedules, name) == 1 or redis.call('ZSCORE', ticks, name)) then
      redis.call('UNLINK', key)
      repaired('tick_without_schedule', name)
    end
  end
end

local page = redis.call('SCAN', cursor, 'MATCH', pattern, 'COUNT', count)
for _, key in ipairs(page[2]) do
  local family, name = string.match(string.sub(key, #prefix + 2), '^([%l_]+):(.*)$')
  local is_wrong = types[family] and redis.call('TYPE', key).ok ~= types[family]
  if is_wrong then
    repaired('wrong_type', string.sub(key, #prefix + 2))
  elseif family ~= 'item' and (types[family] or kept_ms[family]) then
    check(key, family, name)
  end
end
return { page[1], repairs }
