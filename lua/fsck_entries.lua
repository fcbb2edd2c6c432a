-- Check part of the entries of one key against the other keys, and repair what does not agree.
--
-- What clients of other libraries leave between two of their commands is no error here.
--
-- Keys: queue, processing, gone, deadlines, scheduled, ledger, fence, sessions, options, errors, dead, schedules, ticks, declared, events
-- Arguments:
--   prefix  text     the queue's name
--   now_ms  integer  the time; empty: the server's time
--   which   text     the key: "deadlines", "scheduled", "ledger", "options", "errors", "dead", "sessions", "schedules", "ticks" or "declared"
--   cursor  text     "0" in the first call, then the cursor of the last reply
--   count   count    about how many entries to check
-- Reply: the next cursor ("0": the whole key was checked), and a list of repairs: kind, id or name, …. The kind
--   `schedule_without_tick` is not repaired: only the caller can calculate when the schedule is due; see `fsck_tick`.
-- Cost: O(log n) per entry.
-- Limits: one scan of `count` entries (at most 1,000) a call; a small key is checked at once.

local next_cursor = '0'
-- No lease and no delay ends later, except for a time that the caller has set: the year 9999.
local latest_lease, latest_due = now + 31 * 86400000, 253402300800000

-- Return a page of entries: their names and values.
local function page_of(scan, key)
  local page = redis.call(scan, key, cursor, 'COUNT', count)
  local names, values = {}, {}
  for i = 1, #page[2], 2 do
    names[#names + 1], values[#values + 1] = page[2][i], page[2][i + 1]
  end
  next_cursor = page[1]
  return names, values
end

local function exists(id)
  return redis.call('EXISTS', data_key(id)) == 1
end

-- Forget the items of entries without data, which a client of another library has completed.
local function forget(kind, ids)
  forget_facts(ids)
  in_chunks('HDEL', ledger, ids)
  emit_all('vanished', ids)
  repaired_all(kind, ids)
end

-- Write the lease keys of leased items again that are lost. Their holder is known if one of the keys is left.
local function write_lost_lease_keys(leased)
  for id, left in pairs(leased) do
    local keys = lease_keys_of({ id })
    if redis.call('EXISTS', unpack(keys)) < 2 and not foreign_lease_left(id) then
      for i, key in ipairs(keys) do
        local other = redis.pcall('GET', keys[3 - i])
        local holder = type(other) == 'string' and other or 'lh:unknown'
        redis.call('SET', key, holder, 'PX', math.floor(left), 'NX')
      end
      repaired('lost_lease_key', id)
    end
  end
end

-- Put leased ids into `processing` that are missing there. Of a long list it is only known how many are missing; ids
-- that come twice then are dropped by `light_clean`.
local function list_leased(ids)
  local length, missing = redis.call('LLEN', processing), {}
  local listed = {}
  if length > 1000 and length >= redis.call('ZCARD', deadlines) then
    return
  elseif length <= 1000 then
    for _, id in ipairs(redis.call('LRANGE', processing, 0, -1)) do
      listed[id] = true
    end
  end
  for _, id in ipairs(ids) do
    missing[#missing + 1] = not listed[id] and id or nil
  end
  if #missing > 0 then
    enter_processing(missing)
    repaired_all('lost_processing_entry', missing)
  end
end

local function check_leases()
  redis.call('LLEN', queue)
  check_processing()
  local ids, scores = page_of('ZSCAN', deadlines)
  local records = read_in_chunks('HMGET', ledger, ids)
  local ended, requeued, moved, leased, held = {}, {}, {}, {}, {}
  for i, id in ipairs(ids) do
    local score = tonumber(scores[i])
    local foreign_left = foreign_lease_left(id)
    if not exists(id) then
      ended[#ended + 1] = id
    elseif score > math.max(latest_lease, now + (foreign_left or 0) + 1000) then
      moved[#moved + 1] = now + (foreign_left and foreign_left + 0.5 or rederive_lease(id) or 0)
      moved[#moved + 1] = id
      repaired('wrong_lease_end', id)
    elseif is_ours(score) and not read_ledger(records[i]) then
      if foreign_left then
        watch_foreign(id, foreign_left)
      else
        requeued[#requeued + 1] = id
      end
    elseif is_ours(score) and score > now + 1000 then
      held[#held + 1], leased[id] = id, score - now
    end
  end
  enter_waiting(requeued, true)
  in_chunks('ZADD', deadlines, moved)
  forget('lease_without_item', ended)
  repaired_all('lease_without_token', requeued)
  emit_all('expired', requeued, '1')
  for _, gone_ids in ipairs({ ended, requeued }) do
    in_chunks('ZREM', deadlines, gone_ids)
    unlist_or_note(gone_ids)
    drop_lease_keys(gone_ids)
  end
  write_lost_lease_keys(leased)
  list_leased(held)
end

local function check_delays()
  redis.call('ZCARD', deadlines)
  redis.call('HLEN', ledger)
  local ids, scores = page_of('ZSCAN', scheduled)
  local ended, twice, moved = {}, {}, {}
  local leased = read_in_chunks('ZMSCORE', deadlines, ids)
  for i, id in ipairs(ids) do
    local due = tonumber(scores[i])
    if not exists(id) then
      ended[#ended + 1] = id
    elseif is_ours(leased[i]) then
      twice[#twice + 1] = id
    elseif due > latest_due then
      local left = lease_key_left(id, 'lh:scheduled') or 0
      moved[#moved + 1], moved[#moved + 2] = now + left, id
      repaired('wrong_due_time', id)
    elseif due > now + 1000 and redis.call('EXISTS', unpack(lease_keys_of({ id }))) == 0 then
      redis.call('SET', lease_keys_of({ id })[1], 'lh:scheduled', 'PX', math.floor(due - now))
      repaired('lost_lease_key', id)
    end
  end
  in_chunks('ZADD', scheduled, moved)
  forget('delay_without_item', ended)
  repaired_all('two_places', twice)
  in_chunks('ZREM', scheduled, ended)
  in_chunks('ZREM', scheduled, twice)
end

local function check_ledger()
  redis.call('ZCARD', deadlines)
  local stored, _ = read_fence()
  local ids, records = page_of('HSCAN', ledger)
  local ended, unread, highest = {}, {}, 0
  for i, id in ipairs(ids) do
    local first, last, attempt = read_ledger(records[i])
    -- The first is beyond the last if a worker has been failed: see `fail_session`.
    local is_token = first
      and first > 0
      and first <= last + 1
      and last < 2 ^ 53
      and attempt < 2 ^ 31
    if not (exists(id) or redis.call('ZSCORE', deadlines, id)) then
      ended[#ended + 1] = id
    elseif not is_token then
      unread[#unread + 1] = id
    else
      highest = math.max(highest, last)
    end
  end
  if stored and highest > stored then
    redis.call('SET', fence, string.format('%.0f', highest))
    repaired('wrong_fence', 'fence')
  elseif highest > 0 and redis.call('EXISTS', fence) == 0 then
    redis.call('SET', fence, string.format('%.0f', stored))
    repaired('wrong_fence', 'fence')
  end
  forget('record_without_item', ended)
  in_chunks('HDEL', ledger, unread)
  repaired_all('unreadable_record', unread)
end

local function check_facts(key)
  redis.call('ZCARD', deadlines)
  redis.call('HLEN', ledger)
  local ids, values = page_of('HSCAN', key)
  local ended, late = {}, {}
  for i, id in ipairs(ids) do
    if not exists(id) then
      ended[#ended + 1] = not redis.call('ZSCORE', deadlines, id) and id or nil
    elseif key == options and not pcall(cjson.decode, values[i]) then
      -- What a user has given is kept.
      redis.call('HSET', prefix .. ':lost:options', id, values[i])
      redis.call('HDEL', key, id)
      repaired('unreadable_options', id)
    elseif key == options and #late < 100 and is_late(id, read_options(values[i])) then
      local is_leased = redis.call('ZSCORE', deadlines, id) or foreign_lease_left(id)
      late[#late + 1] = not is_leased and id or nil
    end
  end
  if key == options then
    forget('fact_without_item', ended)
    if #late > 0 then
      discard_waiting(late)
    end
  else
    in_chunks('HDEL', key, ended)
    repaired_all('fact_without_item', ended)
  end
end

local function check_dead()
  redis.call('HLEN', ledger)
  local ids, times = page_of('ZSCAN', dead)
  local records = read_in_chunks('HMGET', ledger, ids)
  local missing, living = {}, {}
  for i, id in ipairs(ids) do
    local token = redis.pcall('HGET', dead_key(id), 'token')
    local first, last = read_ledger(records[i])
    token = type(token) == 'string' and tonumber(token)
    if redis.call('EXISTS', dead_key(id)) == 0 then
      missing[#missing + 1] = id
    elseif token and first and first <= token and token <= last and exists(id) then
      living[#living + 1] = id -- a call of `fail_many` was interrupted; the item fails once more
    elseif tonumber(times[i]) > now + 86400000 then
      redis.call('ZADD', dead, now, id)
      repaired('wrong_time_of_death', id)
    end
  end
  leave_dead(living)
  repaired_all('dead_letter_of_an_unfinished_item', living)
  in_chunks('ZREM', dead, missing)
  repaired_all('no_dead_letter', missing)
end

local function check_sessions()
  local names, ends = page_of('ZSCAN', sessions)
  for i, name in ipairs(names) do
    if tonumber(ends[i]) > now + 600000 then
      redis.call('ZADD', sessions, now + 60000, name)
      repaired('endless_session', name)
    end
  end
end

local function check_schedules()
  redis.call('ZCARD', ticks)
  local names = page_of('HSCAN', schedules)
  for i, due in ipairs(read_in_chunks('ZMSCORE', ticks, names)) do
    if not due then
      repaired('schedule_without_tick', names[i])
    end
  end
end

local function check_ticks()
  redis.call('HLEN', schedules)
  redis.call('HLEN', declared)
  local names, times = page_of('ZSCAN', ticks)
  for i, definition in ipairs(read_in_chunks('HMGET', schedules, names)) do
    if not definition then
      redis.call('UNLINK', prefix .. ':schedule:' .. names[i])
      redis.call('HDEL', declared, names[i])
      redis.call('ZREM', ticks, names[i])
      repaired('tick_without_schedule', names[i])
    elseif tonumber(times[i]) > latest_due then
      redis.call('ZREM', ticks, names[i])
      repaired('wrong_tick', names[i])
    end
  end
end

-- Workers declare their schedules again, every minute.
local function check_declared()
  local names, texts = page_of('HSCAN', declared)
  for i, definition in ipairs(read_in_chunks('HMGET', schedules, names)) do
    if not definition or not string.find(texts[i], '^%d+ %d+ ') then
      redis.call('HDEL', declared, names[i])
      repaired('declaration_without_schedule', names[i])
    end
  end
end

if which == 'deadlines' then
  check_leases()
elseif which == 'scheduled' then
  check_delays()
elseif which == 'ledger' then
  check_ledger()
elseif which == 'options' then
  check_facts(options)
elseif which == 'errors' then
  check_facts(errors)
elseif which == 'dead' then
  check_dead()
elseif which == 'sessions' then
  check_sessions()
elseif which == 'schedules' then
  check_schedules()
elseif which == 'ticks' then
  check_ticks()
else
  check_declared()
end
flush()
return { next_cursor, repairs }
