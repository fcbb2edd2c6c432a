-- Deliver an item that was just added to a session that waits for one: lease it, and send it there.
--
-- A session that waits registers in `idle`; the score holds until when, and the lease time: see
-- `IDLE_LEASES`. An item that is the only one of its queue is leased for the session that has
-- waited longest, and sent on the channel `:push:<session>`, as `item <word> <token> <attempt> <lease time
-- in ms> <time> <size of the id> <id><data>`; if the item has a trace, `;<trace>` follows the size; if it is
-- of a stage of a flow run, `;<trace or nothing>;<size of the reference>` does, and the reference stands
-- between the id and the data. This saves the trip of leasing.
--
-- The word is that of the registration, for one delivery: its member of `idle` is `<word>@<session>`. So who
-- may only publish cannot send an item, nor can who has listened before.
--
-- Until the process acknowledges it, the item is noted in `:delivered:<session>`, as `<token> <id>`. If the
-- process cannot take it, its background thread recalls it, and the attempt does not count; after the end of
-- the process, the lease expires.
--
-- Needs: prefix, queue, processing, idle, ledger, fence, deadlines
-- Gives: can_deliver, deliver
-- Uses: controlled (controlled), announce (due), emit, emitting (emit), IDLE_LEASES, IDLE_UNIT_MS
--   (encodings), read_fence (fence), lease_keys_of (keys), read_clock (read_clock)

local token

-- Return whether an item of this size may be delivered, and whether no session waits. Call it before the
-- first write. Larger items wait in the queue, as the server buffers what it sends.
local function can_deliver(size)
  if controlled or size > 65536 then return false end
  if redis.call('ZCARD', idle) == 0 then return false, true end
  if redis.call('LLEN', queue) > 0 then return false end
  redis.call('LLEN', processing)
  token = read_fence()
  return token
end

-- Send an item to a session, and lease it; returns whether a process has received it. Last,
-- its id is dropped from the queue.
local function send_to(holder, word, ms, id, data, trace, reference)
  token = token + 1
  local text, at = string.format('%.0f', token), read_clock()
  local time = string.format('%.0f', at)
  redis.call('SET', fence, text) -- first: a token that was sent is never given again
  local size = trace and #id .. ';' .. trace or #id
  if reference then size = #id .. ';' .. (trace or '') .. ';' .. #reference end
  local heard = redis.pcall(
    'PUBLISH',
    prefix .. ':push:' .. holder,
    table.concat({ 'item', word, text, 1, ms, time, size, id }, ' ') .. (reference or '') .. data
  )
  if type(heard) == 'table' or heard == 0 then return false end
  redis.call('SET', prefix .. ':delivered:' .. holder, text .. ' ' .. id, 'PX', ms)
  redis.call('LPUSH', processing, id)
  redis.call('HSET', ledger, id, text .. ' ' .. text .. ' 1 ' .. time)
  for _, key in ipairs(lease_keys_of({ id })) do
    redis.call('SET', key, holder, 'PX', ms)
  end
  redis.call('ZADD', deadlines, at + ms, id)
  redis.call('LREM', queue, 1, id)
  announce(ms)
  if emitting then
    emit('leased', id, { holder = holder, token = text, attempt = 1, size = #data, due = at + ms })
  end
  return true
end

-- Deliver an item that was just added and waits alone to the session that has waited longest. `trace`,
-- `reference`: those of the item, or nil.
local function deliver(id, data, trace, reference)
  for _ = 1, 10 do
    local member, text = unpack(redis.call('ZRANGE', idle, 0, 0, 'WITHSCORES'))
    if not member or tonumber(text) % IDLE_LEASES == 0 then return end -- it was notified
    redis.call('ZREM', idle, member)
    local cut = string.find(member, '@', 1, true) or 0
    local holder = string.sub(member, cut + 1)
    local score = tonumber(text)
    local ms = score % IDLE_LEASES
    if
      cut > 0
      and score > read_clock() / IDLE_UNIT_MS * IDLE_LEASES
      and redis.pcall('LLEN', prefix .. ':inbox:' .. holder) == 0 -- an id there comes first
      and send_to(holder, string.sub(member, 1, cut - 1), ms, id, data, trace, reference)
    then
      return
    end
  end
end
