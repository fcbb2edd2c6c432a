-- Lease items: choose ids from the ends of lists, then write down their leases.
--
-- An id without data (a ghost) and an id whose item is leased or delayed (a double) are dropped from the list.
--
-- Needs: deadlines, scheduled, ledger, fence, session
-- Gives: choose, lease_next, chosen, last_token

-- The token of the n-th chosen item is this and n.
local last_token = tonumber(redis.call('GET', fence) or 0)

if not last_token then
  return redis.error_reply('WRONGTYPE ' .. fence .. ' is not a number')
end

local chosen, found, sizes, lease_keys, taken = {}, {}, {}, {}, {}
local bytes = 0

-- Look at up to `limit` next ids of a list, choose those that can be leased, and drop all of them from the
-- list. `look` is the command that reads an item: `GET` its data, or `STRLEN` its size alone. Returns how many
-- were dropped, and what stopped it: the data key of the next id if it is no string, whether its data is too much.
local function choose(source, limit, look, room)
  local next_ids = redis.call('LRANGE', source, -limit, -1)
  if #next_ids == 0 then
    return 0
  end
  local scores = redis.call('ZMSCORE', deadlines, unpack(next_ids))
  local due = any_scheduled and redis.call('ZMSCORE', scheduled, unpack(next_ids))
  local next_keys = lease_keys_of(next_ids)
  local any_lease = redis.call('EXISTS', unpack(next_keys)) > 0
  local used, broken, is_full = 0, nil, nil
  for i = #next_ids, 1, -1 do
    local id, score = next_ids[i], scores[i]
    local left = any_lease and foreign_lease_left(id)
    -- If a watched foreign lease is gone and the id is in the list again, a foreign client has returned the item.
    local free = not taken[id]
      and not (due and due[i])
      and (not score or not (is_ours(score) or left))
    local data = free and redis.pcall(look, data_key(id))
    if data == 0 then
      data = redis.call('EXISTS', data_key(id)) == 1 and 0
    end
    if type(data) == 'table' then
      broken = data_key(id)
      break
    elseif data and left then
      watch_foreign(id, left)
    elseif data then
      local size, n = type(data) == 'string' and #data or data, #chosen + 1
      if n > 1 and bytes + size > room then
        is_full = true
        break
      end
      bytes = bytes + size
      chosen[n], found[n], sizes[n], taken[id] = id, data, size, true
      lease_keys[2 * n - 1], lease_keys[2 * n] = next_keys[2 * i - 1], next_keys[2 * i]
    end
    used = used + 1
  end
  redis.call('LTRIM', source, 0, -used - 1)
  return used, broken, is_full
end

local old_records
local ends, records, shortest = {}, {}, nil
local first_time = string.format(' 1 %.0f', now)

-- Lease up to `limit` of the chosen items, after the first `done` of them; returns how many are leased now. Most
-- keys are written with the last of them. `reply` has three values before the first item; each item adds its id,
-- what `look` gave, token and attempt.
local function lease_next(done, limit, lease_ms, reply)
  local ms = tonumber(lease_ms)
  local ends_at = string.format('%.0f', now + ms)
  shortest = math.min(shortest or ms, ms)
  old_records = old_records or redis.call('HMGET', ledger, unpack(chosen))
  local till = math.min(done + limit, #chosen)
  for i = done + 1, till do
    local id, token = chosen[i], last_token + i
    local number = string.format('%.0f', token)
    local first, _, attempt = read_ledger(old_records[i])
    attempt = (attempt or 0) + 1
    ends[2 * i - 1], ends[2 * i] = ends_at, id
    records[2 * i - 1] = id
    if first then
      records[2 * i] = string.format('%.0f %s %d %.0f', first, number, attempt, now)
    else
      records[2 * i] = number .. ' ' .. number .. first_time
    end
    if reply then
      local n = 4 * i
      reply[n], reply[n + 1], reply[n + 2], reply[n + 3] = id, found[i], token, attempt
    end
    if emitting then
      emit('leased', id, {
        holder = session,
        token = token,
        attempt = attempt,
        size = sizes[i],
        due = now + ms,
      })
    end
  end
  write_lease_keys({ unpack(lease_keys, 2 * done + 1, 2 * till) }, lease_ms)
  if till < #chosen or done == #chosen then
    return till
  end
  redis.call('SET', fence, string.format('%.0f', last_token + till))
  in_chunks('ZADD', deadlines, ends)
  if till > 16 then
    -- The server searches a small hash of short values from end to end: 2 us a field at 500 fields. One value
    -- of over 64 bytes turns it into a table for good.
    records[2] = records[2] .. string.rep(' ', 65)
  end
  in_chunks('HSET', ledger, records)
  enlist(chosen)
  announce(shortest)
  return till
end
