-- Lease items: choose ids from the ends of lists, write down their leases, and
-- last drop the ids from the lists.
--
-- Also dropped are ids without data (ghosts), ids of leased or scheduled items (doubles), and
-- those of items that have expired, which are discarded. Until an id is dropped, an item whose
-- lease was written is such a double.
--
-- Needs: queue, deadlines, scheduled, ledger, fence, session
-- Gives: choose, take_tokens, write_leases, begin_leases, drop_checked, chosen,
--   last_token, unreadable, unreadable_error
-- Uses: now (clock), controlled (controlled), discard, late_among (discard), announce (due), emit, emitting
--   (emit), TABLE_BLANKS, TOKEN_LIMIT (encodings), any_facts (facts), read_fence (fence), foreign_lease_left,
--   holds_foreign, is_ours, watch_foreign (foreign), first_due, first_end (heads), data_key, lease_keys_of
--   (keys), lanes (lanes), read_ledger (ledger), enter_processing (processing), write_lease_keys
--   (write_lease_keys)

-- The token of the n-th chosen item is `last_token + n`.
local last_token, stored_token = read_fence()

if not last_token then return redis.error_reply('WRONGTYPE ' .. fence .. ' is not a number') end

local chosen, found, lease_keys, taken = {}, {}, {}, {}
local bytes = 0
-- Ids whose data key is no string, and ids under a foreign lease with the time that it has left.
local unreadable, foreign, late = {}, {}, {}

-- Choose the items that can be leased, at most 1,000 in a script, from up to `limit` ids of a list, after the
-- first `skip` at its right end; or from a table of ids, the last one first. Returns how many ids were
-- checked, and whether it has stopped before an item whose data exceeds `room`.
local function choose(source, skip, limit, with_data, room)
  local next_ids = type(source) == 'table' and source
    or redis.call('LRANGE', source, -skip - limit, -skip - 1)
  if #next_ids == 0 then return 0, false end
  local scores = first_end and redis.call('ZMSCORE', deadlines, unpack(next_ids)) or {}
  local due = first_due and redis.call('ZMSCORE', scheduled, unpack(next_ids)) or {}
  local next_keys = lease_keys_of(next_ids)
  local look = with_data and 'GET' or 'STRLEN'
  local holders = redis.call('EXISTS', unpack(next_keys)) > 0 and redis.call('MGET', unpack(next_keys))
  local is_over
  if any_facts then is_over = late_among(next_ids) end
  for i = #next_ids, 1, -1 do
    local id, score = next_ids[i], scores[i]
    if not (taken[id] or due[i] or is_ours(score)) then
      local key = data_key(id)
      local data = redis.pcall(look, key) -- false: there is none; a table: the key is no string
      if data == 0 then data = redis.call('EXISTS', key) == 1 and 0 end
      local is_held = holders
        and (holds_foreign(holders[2 * i - 1]) or holds_foreign(holders[2 * i]))
        and foreign_lease_left(id)
      if type(data) == 'table' then
        unreadable[#unreadable + 1] = id
      elseif data and not is_held and is_over and is_over[id] then
        late[#late + 1], taken[id] = id, true
      elseif data and not is_held then
        -- If its lease is watched nevertheless, the foreign client has returned it early.
        local size, n = with_data and #data or data, #chosen + 1
        if n > 1 and bytes + size > room then return #next_ids - i, true end
        bytes = bytes + size
        chosen[n], found[n], taken[id] = id, data, true
        lease_keys[2 * n - 1], lease_keys[2 * n] = next_keys[2 * i - 1], next_keys[2 * i]
      elseif data and not score then
        foreign[#foreign + 1] = id
      end
    end
  end
  return #next_ids, false
end

local ends, records, shortest, done = {}, {}, nil, 0
local old_records, now_text, first_time

-- Give each chosen item a token. Before it are only reads, and after it the leases are written.
local function take_tokens()
  old_records, now_text = redis.call('HMGET', ledger, unpack(chosen)), tostring(now)
  first_time = ' 1 ' .. now_text
  for i = 1, #chosen do
    -- Tokens grow even if the fence was set back.
    local last = old_records[i] and tonumber(string.match(old_records[i], '^%d+ (%d+)') or '')
    last_token = last and last < TOKEN_LIMIT and math.max(last_token, last) or last_token
  end
  enter_processing(chosen) -- fails if `gone` or `processing` has another type
  redis.call('INCRBY', fence, last_token - stored_token + #chosen)
end

-- Write leases of up to `limit` chosen items, after those that have one already; `begin_leases` begins them.
-- Each adds four values to `reply`, after its first three: id, data, token and attempt.
local function write_leases(limit, lease_ms, reply)
  local from, till, ms = done + 1, math.min(done + limit, #chosen), tonumber(lease_ms)
  local ends_at = tostring(now + ms)
  shortest, done = math.min(shortest or ms, ms), till
  for i = from, till do
    local id, token = chosen[i], last_token + i
    local number = string.format('%.0f', token)
    local first, _, attempt = read_ledger(old_records[i])
    attempt = (attempt or 0) + 1
    ends[2 * i - 1], ends[2 * i] = ends_at, id
    records[2 * i - 1] = id
    if first then
      records[2 * i] = string.format('%.0f %s %d %s', first, number, attempt, now_text)
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
        size = type(found[i]) == 'string' and #found[i] or found[i],
        due = now + ms,
      })
    end
  end
  write_lease_keys(lease_keys, 2 * from - 1, 2 * till, lease_ms)
end

-- Begin the leases. After it, drop the ids that were checked.
local function begin_leases()
  if #ends > 32 or (last_token + 1) % 16 == 0 then
    -- The server searches a small hash of short values linearly: 2 µs a field at 500 fields. One value of
    -- over 64 bytes turns it into a hash table, until the hash is empty.
    records[2] = records[2] .. string.rep(' ', TABLE_BLANKS)
  end
  redis.call('HSET', ledger, unpack(records))
  redis.call('ZADD', deadlines, unpack(ends))
  announce(shortest)
end

-- Drop the ids that were checked: how many at the right end of the queue, and of an inbox. Those whose data
-- key is no string go to the other end of the queue or of their lanes, so that they hold up no other.
local function drop_checked(number, inbox_, inbox_number)
  if #late > 0 then discard(late) end
  for _, id in ipairs(foreign) do
    watch_foreign(id, foreign_lease_left(id) or 0)
  end
  if #unreadable > 0 and controlled then
    lanes().enter_lanes(unreadable, false)
  elseif #unreadable > 0 then
    redis.call('LPUSH', queue, unpack(unreadable))
  end
  if inbox_ and inbox_number > 0 then redis.call('LTRIM', inbox_, 0, -inbox_number - 1) end
  if number > 0 then redis.call('LTRIM', queue, 0, -number - 1) end
end

-- Return the error of a call that has found nothing but keys that are no strings.
local function unreadable_error()
  return redis.error_reply('WRONGTYPE ' .. data_key(unreadable[1]) .. ' is no data of an item')
end
