-- Lease items: choose ids from the ends of lists, then write down their leases.
--
-- Ids without data (ghosts) and ids of leased or scheduled items (doubles) are dropped from the list.
--
-- Needs: deadlines, scheduled, ledger, fence, session
-- Gives: choose, lease_next, chosen, last_token

-- The token of the n-th chosen item is `last_token + n`.
local last_token = tonumber(redis.call('GET', fence) or 0)

if not last_token then
  return redis.error_reply('WRONGTYPE ' .. fence .. ' is not a number')
end

local chosen, found, sizes, lease_keys, taken = {}, {}, {}, {}, {}
local bytes = 0

-- Choose the items that can be leased from up to `limit` next ids of a list, and drop all these ids from the list.
-- `look` is the command that reads an item: `GET` its data, or `STRLEN` only its size. Returns how many ids were
-- dropped and, if an id stopped it, the data key that is no string, or true if the data exceeds `room`.
local function choose(source, limit, look, room)
  local next_ids = redis.call('LRANGE', source, -limit, -1)
  if #next_ids == 0 then
    return 0
  end
  local scores = redis.call('ZMSCORE', deadlines, unpack(next_ids))
  local due = any_scheduled and redis.call('ZMSCORE', scheduled, unpack(next_ids))
  local next_keys = lease_keys_of(next_ids)
  local any_lease = redis.call('EXISTS', unpack(next_keys)) > 0
  local used, stop = 0, nil
  for i = #next_ids, 1, -1 do
    local id, score = next_ids[i], scores[i]
    local left = any_lease and foreign_lease_left(id)
    -- The item is also free if a watched foreign lease is gone: the foreign client has returned it.
    local free = not taken[id]
      and not (due and due[i])
      and (not score or not (is_ours(score) or left))
    local data = free and redis.pcall(look, data_key(id))
    if data == 0 then
      data = redis.call('EXISTS', data_key(id)) == 1 and 0
    end
    if type(data) == 'table' then
      stop = data_key(id)
      break
    elseif data and left then
      watch_foreign(id, left)
    elseif data then
      local size, n = type(data) == 'string' and #data or data, #chosen + 1
      if n > 1 and bytes + size > room then
        stop = true
        break
      end
      bytes = bytes + size
      chosen[n], found[n], sizes[n], taken[id] = id, data, size, true
      lease_keys[2 * n - 1], lease_keys[2 * n] = next_keys[2 * i - 1], next_keys[2 * i]
    end
    used = used + 1
  end
  redis.call('LTRIM', source, 0, -used - 1)
  return used, stop
end

local old_records
local ends, records, shortest = {}, {}, nil
local first_time = string.format(' 1 %.0f', now)

-- Lease up to `limit` of the chosen items, after the first `done` of them; returns how many are leased now. Most
-- keys are written with the last of them. Each item adds four values to `reply`, after its first three: id, what
-- `look` has read, token and attempt.
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
    -- The server searches a small hash of short values linearly: 2 µs a field at 500 fields. One value of over 64
    -- bytes turns it into a hash table.
    records[2] = records[2] .. string.rep(' ', 65)
  end
  in_chunks('HSET', ledger, records)
  enlist(chosen)
  announce(shortest)
  return till
end
