-- Give the items of part of a set more time, and lease again into their places those that only wait.
--
-- An item waits again when its lease is over. It keeps its place if it still is the item that was leased for it
-- (not completed, nor added again since), and nobody holds it. Its id is taken out of the waiting list if it is
-- near one of the ends, where items come back; deeper it stays behind, as a double that is dropped when it is met.
-- What is not held after that keeps its place, too: it may have been read before. `set_read` gives up.
--
-- Keys: queue, processing, gone, deadlines, scheduled, ledger, fence, events
-- Arguments:
--   prefix   text     the queue's name
--   now_ms   integer  the time, or empty for the server's
--   session  text     who leases: the value of the lease keys
--   stream   text     the name of the stream
--   reader   text     who reads it
--   set      text     the name of the set
--   start    integer  the first place of the set to look at; 0 is its first item
--   count    integer  how many places to look at; 0: only say how many there are
--   hold_ms  integer  for how long each is leased from now on
-- Reply: 1, or 0 if another reader has taken over (then nothing was done); how many places the set has; how many
--   of those looked at are held now; how many of these were leased again; how many are held no more.
-- Cost: O(log n) per item; O(start) into the set; if some are leased again, 8,000 waiting ids are looked at.
-- Limits: at most 1,000 places a call.
-- Needs: check

local set_key = prefix .. ':set:' .. set
local reply = { is_stream_owner() and 1 or 0, redis.call('LLEN', set_key), 0, 0, 0 }
local places = redis.call('LRANGE', set_key, start, start + count - 1)
if count == 0 or #places == 0 or not is_stream_owner() then
  return reply
end
local set_ids, tokens = {}, {}
for i, place in ipairs(places) do
  local token, id = string.match(place, '^(%d+) (.*)$')
  set_ids[i], tokens[i] = id or '', tonumber(token)
end
local set_records = redis.call('HMGET', ledger, unpack(set_ids))
local set_scores = redis.call('ZMSCORE', deadlines, unpack(set_ids))

local renewed, renewed_keys, back, place_of, sooner = {}, {}, {}, {}, nil
local till = now + hold_ms
for i, id in ipairs(set_ids) do
  local first, last = read_ledger(set_records[i])
  if tokens[i] and is_current(id, tokens[i], set_scores[i], set_records[i]) then
    renewed[#renewed + 1], renewed[#renewed + 2] = till, id
    for _, key in ipairs(lease_keys_of({ id })) do
      renewed_keys[#renewed_keys + 1] = key
    end
    if till < tonumber(set_scores[i]) then
      sooner = hold_ms
    end
    reply[3] = reply[3] + 1
    if emitting then
      emit('renewed', id, { holder = session, token = tokens[i], due = till })
    end
  elseif tokens[i] then
    reply[5] = reply[5] + 1
    if first and first <= tokens[i] and tokens[i] <= last and not is_ours(set_scores[i]) then
      back[#back + 1], place_of[id] = id, i
    end
  end
end
begin_writes() -- work that runs must be able to go on
in_chunks('ZADD', deadlines, renewed)
write_lease_keys(renewed_keys, hold_ms)
announce(sooner)

-- Take ids out of the waiting list where they are near an end of it. The others keep their order.
local function leave_ends(wanted, left)
  for _, young in ipairs({ true, false }) do
    if left > 0 then
      local near = redis.call('LRANGE', queue, young and 0 or -4000, young and 3999 or -1)
      local stay = {}
      for at = 1, #near do
        -- Pushed at the young end, the last comes first.
        local id = near[young and #near + 1 - at or at]
        if wanted[id] then
          left = left - 1
        else
          stay[#stay + 1] = id
        end
      end
      if #stay < #near then
        redis.call('LTRIM', queue, young and #near or 0, young and -1 or -#near - 1)
        in_chunks(young and 'LPUSH' or 'RPUSH', queue, stay)
      end
    end
  end
end

if #back > 0 then
  -- Looked at as if they were next in line: what is delayed, or under a foreign lease, is left.
  local line = set_key .. ':back'
  in_chunks('LPUSH', line, back)
  local looked, broken = 0, nil
  while looked < #back and not broken do
    local used
    used, broken = choose(line, #back, 'STRLEN', math.huge)
    looked = looked + used
  end
  redis.call('UNLINK', line)
end
local count_again = #chosen
if count_again > 0 then
  local wanted = {}
  for _, id in ipairs(chosen) do
    wanted[id] = true
  end
  leave_ends(wanted, count_again)
  lease_next(0, count_again, hold_ms)
  for i, id in ipairs(chosen) do
    redis.call(
      'LSET',
      set_key,
      start + place_of[id] - 1,
      string.format('%.0f', last_token + i) .. ' ' .. id
    )
  end
  reply[3], reply[4], reply[5] = reply[3] + count_again, count_again, reply[5] - count_again
end
flush()
return reply
