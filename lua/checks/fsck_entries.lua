-- Check part of the entries of one key against the other keys, and repair what does not agree. `fsck_leases`
-- checks others. Items that have expired, as their options say, are discarded.
--
-- Keys: queue, gone, deadlines, scheduled, ledger, sessions, options, errors, dead, schedules, ticks,
--   declared, events, workers, heartbeats
-- Arguments:
--   prefix  text     the queue's name
--   now_ms  integer  the time; empty: the server's time
--   which   text     the key: "options", "errors", "progress", "dead", "recent", "cancelled", "tags",
--       "unstarted", "sessions", "ticks", "declared", "workers" or "heartbeats"
--   cursor  text     "0" in the first call, then the cursor of the last reply
--   count   count    about how many entries to check
-- Reply: the next cursor ("0": the whole key was checked), and a list of repairs: kind, id or name, ….
-- Cost: O(log n) per entry.
-- Limits: one scan of `count` entries (at most 1,000) a call; a small key is checked at once.
-- Uses: progress_key, tags_key, unstarted_key (RARE_KEYS), forget_items, has_data, next_page, page_of
--   (checks), now (clock), dead_key, leave_dead (dead_letter), discard_waiting, is_late (discard), flush
--   (emit), LATEST_DUE (encodings), read_options (facts), foreign_lease_left (foreign), in_chunks,
--   read_in_chunks (keys), read_ledger (ledger), repaired, repaired_all, repairs (repairs), wake_next
--   (slots), carried_by, note_tags, tags_in (tags), note_unstarted, unstarted_in (unstarted)

local latest_due = LATEST_DUE

-- Return whether options are a JSON object whose known fields can be read, each as it is there.
local function is_readable(text)
  local is_json, found = pcall(cjson.decode, text)
  if not is_json or type(found) ~= 'table' or string.sub(text, 1, 1) ~= '{' then return false end
  local read = read_options(text)
  for _, name in ipairs({ 'level', 'group', 'expires', 'trace', 'run' }) do
    local is_default = found[name] == 0 or found[name] == ''
    if found[name] ~= nil and not is_default and found[name] ~= read[name] then return false end
  end
  local tags = found.tags
  return tags == nil or (type(tags) == 'table' and #tags_in(text) == #tags)
end

-- Index an item or a dead letter by the tags in its options that it is not found by.
local function check_tags_of(id, text)
  for _, tag in ipairs(tags_in(text)) do
    if not redis.call('ZSCORE', tags_key, tag .. '\0' .. id) then
      note_tags(id, text)
      return repaired('lost_tag', id)
    end
  end
end

local function check_tags()
  redis.call('HLEN', options)
  for _, member in ipairs((page_of('ZSCAN', tags_key))) do
    local wanted, id = string.match(member, '^(%Z+)%z(.*)$')
    local is_known = false
    for _, text in ipairs(id and { redis.call('HGET', options, id) or '', carried_by(id) } or {}) do
      for _, tag in ipairs(tags_in(text)) do
        is_known = is_known or tag == wanted
      end
    end
    if not is_known then
      redis.call('ZREM', tags_key, member)
      repaired('stale_tag', id or member)
    end
  end
end

-- Note an item under the key in its options if no item is, unless it was started.
local function check_key_of(id, text)
  local key = unstarted_in(text)
  if not key or redis.call('HEXISTS', unstarted_key, key) == 1 or redis.call('ZSCORE', deadlines, id) then
    return
  end
  if redis.call('HEXISTS', ledger, id) == 0 then
    note_unstarted(id, text)
    repaired('lost_unstarted', id)
  end
end

local function check_unstarted()
  redis.call('HLEN', options)
  local keys, ids = page_of('HSCAN', unstarted_key)
  for i, id in ipairs(ids) do
    if not has_data(id) or unstarted_in(redis.call('HGET', options, id)) ~= keys[i] then
      redis.call('HDEL', unstarted_key, keys[i])
      repaired('stale_unstarted', id)
    end
  end
end

local function check_facts(key)
  redis.call('ZCARD', deadlines)
  redis.call('HLEN', ledger)
  redis.call('ZCARD', tags_key)
  redis.call('HLEN', unstarted_key)
  local ids, values = page_of('HSCAN', key)
  local ended, late = {}, {}
  for i, id in ipairs(ids) do
    if not has_data(id) then
      ended[#ended + 1] = not redis.call('ZSCORE', deadlines, id) and id or nil
    elseif key == options and not is_readable(values[i]) then
      -- What a user has given is kept.
      redis.call('HSET', prefix .. ':lost:options', id, values[i])
      redis.call('HDEL', key, id)
      repaired('unreadable_options', id)
    elseif key == options and #late < 100 and is_late(id, read_options(values[i])) then
      local is_leased = redis.call('ZSCORE', deadlines, id) or foreign_lease_left(id)
      late[#late + 1] = not is_leased and id or nil
    elseif key == options then
      check_tags_of(id, values[i])
      check_key_of(id, values[i])
    end
  end
  if key == options then
    forget_items('fact_without_item', ended)
    if #late > 0 then
      discard_waiting(late)
      wake_next()
    end
  else
    in_chunks('HDEL', key, ended)
    repaired_all('fact_without_item', ended)
  end
end

-- An id stays taken for 30 days at most.
local function check_windows(key)
  local ids, ends = page_of('ZSCAN', key)
  for i, id in ipairs(ids) do
    if tonumber(ends[i]) > now + 31 * 86400000 then
      redis.call('ZREM', key, id)
      repaired('endless_window', id)
    end
  end
end

local function check_dead()
  redis.call('HLEN', ledger)
  redis.call('HLEN', options)
  redis.call('ZCARD', tags_key)
  local ids, times = page_of('ZSCAN', dead)
  local records = read_in_chunks('HMGET', ledger, ids)
  local missing, living = {}, {}
  for i, id in ipairs(ids) do
    local token = redis.pcall('HGET', dead_key(id), 'token')
    local first, last = read_ledger(records[i])
    token = type(token) == 'string' and tonumber(token)
    if redis.call('EXISTS', dead_key(id)) == 0 then
      missing[#missing + 1] = id
    elseif token and first and first <= token and token <= last and has_data(id) then
      living[#living + 1] = id -- a call of `fail_many` was interrupted; the item fails once more
    elseif tonumber(times[i]) > now + 1000 then
      redis.call('ZADD', dead, now, id)
      repaired('wrong_time_of_death', id)
    else
      check_tags_of(id, carried_by(id))
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
    if tonumber(ends[i]) > now + 60000 then
      redis.call('ZADD', sessions, now + 10000, name)
      repaired('endless_session', name)
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

-- Return for how many ms a heartbeat of a worker counts, as its registration has it; nil: it says nothing.
local function alive_ms_in(about)
  local read, facts = pcall(cjson.decode, about or '')
  return read and type(facts) == 'table' and tonumber(facts.alive_ms) or nil
end

-- A worker that lives beats again soon, and one whose registration was lost registers with that.
local function check_workers()
  redis.call('ZCARD', heartbeats)
  local names = page_of('HSCAN', workers)
  for _, name in ipairs(names) do
    local told = string.match(name, '^told:(.*)$')
    if told and redis.call('HEXISTS', workers, told) == 0 then
      redis.call('HDEL', workers, name)
      repaired('lost_worker', told)
    elseif not told and not redis.call('ZSCORE', heartbeats, name) then
      local alive_ms = alive_ms_in(redis.call('HGET', workers, name))
      redis.call('ZADD', heartbeats, now + math.max(15000, alive_ms or 0), name)
      repaired('lost_heartbeat', name)
    end
  end
end

local function check_heartbeats()
  redis.call('HLEN', workers)
  local names, ends = page_of('ZSCAN', heartbeats)
  for i, name in ipairs(names) do
    local till, about = tonumber(ends[i]), redis.call('HGET', workers, name)
    local alive_ms = alive_ms_in(about)
    if not about and till < now - 60000 then
      -- Workers fail each other by names that are texts: no other client would drop it.
      redis.call('ZREM', heartbeats, name)
      repaired('lost_worker', name)
    elseif alive_ms and till < math.huge and till > now + alive_ms + 1000 then
      redis.call('ZADD', heartbeats, now + alive_ms, name)
      repaired('late_heartbeat', name)
    elseif not alive_ms and till > now + 600000 and not (about and till == math.huge) then
      redis.call('ZADD', heartbeats, now + 15000, name)
      repaired('lost_worker', name)
    end
  end
end

if which == 'options' then
  check_facts(options)
elseif which == 'errors' then
  check_facts(errors)
elseif which == 'progress' then
  check_facts(progress_key)
elseif which == 'recent' or which == 'cancelled' then
  check_windows(prefix .. ':' .. which)
elseif which == 'tags' then
  check_tags()
elseif which == 'unstarted' then
  check_unstarted()
elseif which == 'dead' then
  check_dead()
elseif which == 'sessions' then
  check_sessions()
elseif which == 'ticks' then
  check_ticks()
elseif which == 'declared' then
  check_declared()
elseif which == 'workers' then
  check_workers()
else
  check_heartbeats()
end
flush()
return { next_page(), repairs }
