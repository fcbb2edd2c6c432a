-- Leasing: ids are taken out of lists, and their leases written down.
--
-- Ids without data (ghosts) and ids that are under lease or delayed (doubles) are dropped on the way.
--
-- Needs: prefix, deadlines, scheduled, ledger, fence, session, now, data_key, lease_keys_of, in_chunks,
--   any_scheduled, read_ledger, foreign_lease_left, is_ours, watch_foreign, enlist, write_lease_keys, announce,
--   emitting, emit, look, weigh, most_bytes
-- Gives: take_chunk, give, given, taken, looked, full, broken

local last_token = tonumber(redis.call('GET', fence) or 0)

if not last_token then
  return redis.error_reply('WRONGTYPE ' .. fence .. ' is not a number')
end
-- A server at its `maxmemory` refuses a script's first write if that may need memory, and no later one.
-- Work that is there has to go on, so begin with a write that needs none.
redis.call('ZREM', deadlines, '')

local ids, found, lease_keys = {}, {}, {}
local taken, bytes, looked, met = 0, 0, 0, {}
local full, broken = false, nil

-- Look at the next ids of a list, keep those that can be leased, drop the rest.
local function take_chunk(source, size)
  local next_ids = redis.call('LRANGE', source, -size, -1)
  if #next_ids == 0 then
    return 0
  end
  local scores = redis.call('ZMSCORE', deadlines, unpack(next_ids))
  local due = any_scheduled() and redis.call('ZMSCORE', scheduled, unpack(next_ids))
  local next_keys = lease_keys_of(next_ids)
  local any_lease = redis.call('EXISTS', unpack(next_keys)) > 0
  local used = 0
  for i = #next_ids, 1, -1 do
    local id, score = next_ids[i], scores[i]
    local left = any_lease and foreign_lease_left(id)
    -- A foreign lease that was watched and is gone: the item came back by a foreign hand.
    local free = not met[id]
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
      local weight = weigh(data)
      if taken > 0 and bytes + weight > most_bytes then
        full = true
        break
      end
      taken, bytes = taken + 1, bytes + weight
      ids[taken], found[taken], met[id] = id, data, true
      lease_keys[2 * taken - 1], lease_keys[2 * taken] = next_keys[2 * i - 1], next_keys[2 * i]
    end
    used = used + 1
  end
  redis.call('LTRIM', source, 0, -used - 1)
  return used
end

-- From the fourth on, for each that is leased: id, what was seen of its data, token, attempt.
local given = { now, -1, 0 }
local entries
local ends, records, shortest = {}, {}, nil
local first_time = string.format(' 1 %.0f', now)

-- Lease the next of what was taken, after `done` of them; says how many are leased now. With the last of them
-- all is written down.
local function give(done, most, for_ms)
  local ms = tonumber(for_ms)
  local ends_at = string.format('%.0f', now + ms)
  shortest = math.min(shortest or ms, ms)
  entries = entries or redis.call('HMGET', ledger, unpack(ids))
  local till = math.min(done + most, taken)
  for i = done + 1, till do
    local id, token = ids[i], last_token + i
    local number = string.format('%.0f', token)
    local first, _, attempt = read_ledger(entries[i])
    attempt = (attempt or 0) + 1
    ends[2 * i - 1], ends[2 * i] = ends_at, id
    records[2 * i - 1] = id
    if first then
      records[2 * i] = string.format('%.0f %s %d %.0f', first, number, attempt, now)
    else
      records[2 * i] = number .. ' ' .. number .. first_time
    end
    local n = 4 * i
    given[n], given[n + 1], given[n + 2], given[n + 3] = id, found[i], token, attempt
    if emitting then
      local size = weigh(found[i])
      emit('leased', id, {
        holder = session,
        token = token,
        attempt = attempt,
        size = size,
        due = now + ms,
      })
    end
  end
  write_lease_keys({ unpack(lease_keys, 2 * done + 1, 2 * till) }, for_ms)
  if till < taken or done == taken then
    return till
  end
  redis.call('SET', fence, string.format('%.0f', last_token + taken))
  in_chunks('ZADD', deadlines, ends)
  if taken > 16 then
    -- A hash is searched from end to end while it is small and all its values are short: 2 us a field
    -- at 500 fields. One long value (over 64 bytes) makes it a table for good.
    records[2] = records[2] .. string.rep(' ', 65)
  end
  in_chunks('HSET', ledger, records)
  enlist(ids)
  announce(shortest)
  return till
end
