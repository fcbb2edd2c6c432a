-- Bring back what is due, then lease waiting items, the inbox of this session first.
--
-- Ids without data (ghosts) and ids that are under lease or delayed (doubles) are dropped on the way.
--
-- Keys:
--   queue       list     ids that wait
--   inbox       list     ids on their way to this session
--   processing  list     ids under lease
--   gone        set      completed ids still to be swept out of `processing`
--   deadlines   zset     id -> end of its lease
--   scheduled   zset     id -> due time
--   ledger      hash     id -> leases and deliveries of this incarnation
--   fence       counter  the last lease number given out
--   sessions    zset     session -> until when it is alive
--   events      stream   what became of items, if that is kept
-- Arguments:
--   prefix        text     the queue's name
--   now_ms        integer  the time, or empty for the server's
--   session       text     who leases: the value of the lease keys
--   return_front  flag     where lapsed items go: 1 to the front, 0 to the end
--   max_bytes     integer  stop before this much data (the first item is always given)
--   wants         rest     count, lease time in ms, … (a pair per caller or run of callers)
-- Reply: the time in ms, ms until something falls due (0: call again, -1: nothing will), sessions
--   registered, then id, data, lease number, deliveries for each item, in the order of `wants`.
-- Cost: O(log n) per item leased or brought back, O(1) per ghost or double.
-- Limits: 1,000 items, 100 brought back, 2,000 ids looked at, `max_bytes` of data a call.

-- @include check
-- @include tell
-- @include clock
-- @include keys
-- @include ledger
-- @include foreign
-- @include watch
-- @include processing
-- @include move
-- @include inbox
-- @include recover
-- @include mark
-- @include due

redis.call('LLEN', inbox)
redis.call('ZCARD', sessions)
local last_token = tonumber(redis.call('GET', fence) or 0)
if not last_token then
  return redis.error_reply('WRONGTYPE ' .. fence .. ' is not a number')
end

-- A server at its `maxmemory` refuses a script's first write if that may need memory, and no later one.
-- Work that is there has to go on, so begin with a write that needs none.
redis.call('ZREM', deadlines, '')

local _, more = recover(100)

local total = 0
for at = wants + 1, #ARGV, 2 do
  total = total + tonumber(ARGV[at])
end

local ids, datas, lease_keys = {}, {}, {}
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
    local data = free and redis.pcall('GET', data_key(id))
    if type(data) == 'table' then
      broken = data_key(id)
      break
    elseif data and left then
      watch_foreign(id, left)
    elseif data then
      if taken > 0 and bytes + #data > max_bytes then
        full = true
        break
      end
      taken, bytes = taken + 1, bytes + #data
      ids[taken], datas[taken], met[id] = id, data, true
      lease_keys[2 * taken - 1], lease_keys[2 * taken] = next_keys[2 * i - 1], next_keys[2 * i]
    end
    used = used + 1
  end
  redis.call('LTRIM', source, 0, -used - 1)
  return used
end

for _, source in ipairs({ inbox, queue }) do
  while taken < total and not full and not broken and looked < 2000 do
    local used = take_chunk(source, math.min(total - taken, 500))
    if used == 0 then
      break
    end
    looked = looked + used
  end
end
if broken and taken == 0 then
  told()
  return redis.error_reply('WRONGTYPE ' .. broken .. ' is no data of an item')
end
more = more or full or looked >= 2000

local reply = { now, -1, 0 }

-- Write the leases down, for one pair of `wants`; returns how many items have been given in all.
local ends, records, shortest = {}, {}, nil
local first_time = string.format(' 1 %.0f', now)
local function give(entries, given, most, lease_ms)
  local ms = tonumber(lease_ms)
  local ends_at = string.format('%.0f', now + ms)
  shortest = math.min(shortest or ms, ms)
  local till = math.min(given + most, taken)
  for i = given + 1, till do
    local id, token = ids[i], last_token + i
    local token_text = string.format('%.0f', token)
    local first, _, deliveries = read_ledger(entries[i])
    deliveries = (deliveries or 0) + 1
    ends[2 * i - 1], ends[2 * i] = ends_at, id
    records[2 * i - 1] = id
    if first then
      records[2 * i] = string.format('%.0f %s %d %.0f', first, token_text, deliveries, now)
    else
      records[2 * i] = token_text .. ' ' .. token_text .. first_time
    end
    local n = 4 * i
    reply[n], reply[n + 1], reply[n + 2], reply[n + 3] = id, datas[i], token, deliveries
    if telling then
      local size = #datas[i]
      tell('leased', id, {
        holder = session,
        token = token,
        deliveries = deliveries,
        size = size,
        due = now + ms,
      })
    end
  end
  mark_leased({ unpack(lease_keys, 2 * given + 1, 2 * till) }, lease_ms)
  return till
end

if taken > 0 then
  local entries = redis.call('HMGET', ledger, unpack(ids))
  local given = 0
  for at = wants + 1, #ARGV, 2 do
    given = give(entries, given, tonumber(ARGV[at]), ARGV[at + 1])
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
end

told()
reply[3] = redis.call('ZCARD', sessions)
if more then
  reply[2] = 0
elseif taken < total then
  reply[2] = next_due_in()
end
return reply
