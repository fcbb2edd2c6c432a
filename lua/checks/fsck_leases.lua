-- Check part of the leases, the delays or the ledger against the other keys, and repair what does not agree.
--
-- What clients of other libraries leave between two of their commands is no error here.
--
-- Keys: queue, processing, gone, deadlines, scheduled, ledger, fence, options, errors, events
-- Arguments:
--   prefix  text     the queue's name
--   now_ms  integer  the time; empty: the server's time
--   which   text     the key: "deadlines", "scheduled" or "ledger"
--   cursor  text     "0" in the first call, then the cursor of the last reply
--   count   count    about how many entries to check
-- Reply: the next cursor ("0": the whole key was checked), and a list of repairs: kind, id, ….
-- Cost: O(log n) per entry.
-- Limits: one scan of `count` entries (at most 1,000) a call; a small key is checked at once.
-- Uses: forget_items, has_data, next_page, page_of (checks), now (clock), emit_all, flush (emit),
--   ATTEMPT_LIMIT, FOREIGN_MARK, LATEST_DUE, OURS, OURS_SIZE, SCHEDULED, TOKEN_LIMIT, UNKNOWN_HOLDER
--   (encodings), read_fence (fence), foreign_lease_left, is_ours, watch_foreign (foreign), data_key,
--   in_chunks, lease_keys_of, read_in_chunks (keys), read_ledger (ledger), drop_lease_keys (move),
--   check_processing, enter_processing, unlist_or_note (processing), lease_key_left, rederive_lease
--   (rederive), repaired, repaired_all, repairs (repairs), free_leases, note_options, wake_next (slots),
--   bound_lease, longest_watch (steps), enter_waiting (waiting)

-- No lease and no delay ends later, except for a time that the caller has set.
local latest_lease, latest_due = now + 31 * 86400000, LATEST_DUE

-- Return when a lease ends at the latest. That of a client of another library is watched for less.
local function longest_of(score) return is_ours(score) and latest_lease or now + longest_watch end

-- Return which of some ids have no data, and which lack a lease key or have one
-- of another client: most do not.
local function find_odd(ids)
  local data_keys, without_data, odd_keys = {}, {}, {}
  for i, id in ipairs(ids) do
    data_keys[i] = data_key(id)
  end
  local lease_keys = lease_keys_of(ids)
  for from = 1, #ids, 500 do
    local to = math.min(from + 499, #ids)
    if redis.call('EXISTS', unpack(data_keys, from, to)) < to - from + 1 then
      for i = from, to do
        without_data[ids[i]] = not has_data(ids[i]) or nil
      end
    end
    for i, holder in ipairs(redis.call('MGET', unpack(lease_keys, 2 * from - 1, 2 * to))) do
      if not holder or string.sub(holder, 1, OURS_SIZE) ~= OURS then
        odd_keys[ids[from + math.floor((i - 1) / 2)]] = true
      end
    end
  end
  return without_data, odd_keys
end

-- Write the lease keys of leased items again that are lost. Their holder is known if one of the keys is left.
local function write_lost_lease_keys(leased)
  for id, left in pairs(leased) do
    local keys = lease_keys_of({ id })
    if left and redis.call('EXISTS', unpack(keys)) < 2 and not foreign_lease_left(id) then
      for i, key in ipairs(keys) do
        local other = redis.pcall('GET', keys[3 - i])
        local holder = type(other) == 'string' and other or UNKNOWN_HOLDER
        redis.call('SET', key, holder, 'PX', math.floor(left), 'NX')
      end
      repaired('lost_lease_key', id)
    end
  end
end

-- Put leased ids into `processing` that are missing there. Of a long list it is only known how many are
-- missing; ids that come twice then are dropped by `light_clean`.
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
  local without_data, odd_keys = find_odd(ids)
  local ended, requeued, moved, stamped, leased, held = {}, {}, {}, {}, {}, {}
  for i, id in ipairs(ids) do
    local score = tonumber(scores[i])
    local foreign_left = odd_keys[id] and foreign_lease_left(id)
    if without_data[id] then
      ended[#ended + 1] = id
    elseif bound_lease(scores[i], records[i]) and not foreign_left then
      local till, written = bound_lease(scores[i], records[i])
      moved[#moved + 1], moved[#moved + 2] = till, id
      stamped[#stamped + 1], stamped[#stamped + 2] = id, written
      repaired('wrong_lease_end', id)
    elseif score > math.max(longest_of(score), now + (foreign_left or 0) + 1000) then
      -- stylua: ignore
      moved[#moved + 1] = now + (foreign_left and foreign_left + FOREIGN_MARK or rederive_lease(id) or 0)
      moved[#moved + 1] = id
      repaired('wrong_lease_end', id)
    elseif is_ours(score) and not read_ledger(records[i]) then
      if foreign_left then
        watch_foreign(id, foreign_left)
      else
        requeued[#requeued + 1] = id
      end
    elseif is_ours(score) and score > now + 1000 then
      held[#held + 1], leased[id] = id, odd_keys[id] and score - now
    end
  end
  note_options(ended)
  note_options(requeued)
  enter_waiting(requeued, true)
  in_chunks('ZADD', deadlines, moved)
  in_chunks('HSET', ledger, stamped)
  forget_items('lease_without_item', ended)
  repaired_all('lease_without_token', requeued)
  emit_all('expired', requeued, '1')
  for _, gone_ids in ipairs({ ended, requeued }) do
    in_chunks('ZREM', deadlines, gone_ids)
    unlist_or_note(gone_ids)
    drop_lease_keys(gone_ids)
    free_leases(gone_ids)
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
  local without_data = find_odd(ids)
  for i, id in ipairs(ids) do
    local due = tonumber(scores[i])
    if without_data[id] then
      ended[#ended + 1] = id
    elseif is_ours(leased[i]) then
      twice[#twice + 1] = id
    elseif due > latest_due then
      local left = lease_key_left(id, SCHEDULED) or 0
      moved[#moved + 1], moved[#moved + 2] = now + left, id
      repaired('wrong_due_time', id)
    elseif due > now + 1000 and redis.call('EXISTS', unpack(lease_keys_of({ id }))) == 0 then
      redis.call('SET', lease_keys_of({ id })[1], SCHEDULED, 'PX', math.floor(due - now))
      repaired('lost_lease_key', id)
    end
  end
  in_chunks('ZADD', scheduled, moved)
  forget_items('delay_without_item', ended)
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
      and last < TOKEN_LIMIT
      and attempt < ATTEMPT_LIMIT
    if not (has_data(id) or redis.call('ZSCORE', deadlines, id)) then
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
  forget_items('record_without_item', ended)
  in_chunks('HDEL', ledger, unread)
  repaired_all('unreadable_record', unread)
end

if which == 'deadlines' then
  check_leases()
elseif which == 'scheduled' then
  check_delays()
else
  check_ledger()
end
wake_next()
flush()
return { next_page(), repairs }
