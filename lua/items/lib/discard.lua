-- Discard items that have expired: the time in their options has passed, and no worker has begun with them.
--
-- Removing the data decides. An id that is left in a list has no data, so that leasing drops it. Callers
-- that ask for the result find the id in `:cancelled`, with a time that has
-- the mark `EXPIRED_MARK`, unlike that of a cancelled item.
--
-- Needs: prefix, scheduled, ledger
-- Gives: is_late, late_among, discard, discard_waiting
-- Uses: cancelled_key (RARE_KEYS), note_cancelled (cancelled), emit, emitting (emit), EXPIRED_MARK
--   (encodings), forget_facts, option_texts, read_options (facts), data_key, in_chunks (keys), read_ledger
--   (ledger), push (push), read_clock (read_clock), find_waiting, leave_places (waiting)

-- For how long it is known that an item has expired, in ms.
local known_ms = 3600000

-- Return whether an item has expired, given its options. `id` is not leased.
local function is_late(id, found)
  if not (found.expires and found.expires <= read_clock()) then return false end
  local _, _, attempt = read_ledger(redis.call('HGET', ledger, id))
  return (attempt or 0) == 0
end

-- Return which of these items have expired, if they are not leased: id -> true.
local function late_among(ids)
  local over = {}
  for i, text in ipairs(option_texts(ids)) do
    over[ids[i]] = string.find(text or '', '"expires"') and is_late(ids[i], read_options(text))
  end
  return over
end

-- Notify the sessions that wait for the end of items. An error must not end the
-- script, as it has written before.
local function tell_watchers(ids)
  local watchers_key = prefix .. ':watchers'
  local waiting_for = redis.pcall('HMGET', watchers_key, unpack(ids))
  for i, sessions_ in ipairs(waiting_for.err and {} or waiting_for) do
    push(prefix, sessions_ or '', ids[i], 'expired ' .. ids[i])
  end
  redis.pcall('HDEL', watchers_key, unpack(ids))
end

-- Discard up to 1,000 items. Call it before their ids are dropped from the lists, and `flush` after it.
local function discard(ids)
  local keys = {}
  for i, id in ipairs(ids) do
    keys[4 * i - 3], keys[4 * i - 2] = prefix .. ':result:' .. id, data_key(id)
    keys[4 * i - 1], keys[4 * i] = prefix .. ':lease:' .. id, prefix .. ':leased_by_session:' .. id
    if emitting then emit('discarded', id, { details = { reason = 'expired' } }) end
  end
  local kind = redis.call('TYPE', cancelled_key).ok
  if kind == 'zset' or kind == 'none' then note_cancelled(ids, known_ms, EXPIRED_MARK) end
  in_chunks('UNLINK', nil, keys) -- the result is that of an earlier item
  forget_facts(ids)
  in_chunks('HDEL', ledger, ids)
  in_chunks('ZREM', scheduled, ids)
  tell_watchers(ids)
end

-- Discard items wherever they wait. Those deep in a list leave their id there.
local function discard_waiting(ids)
  local places = find_waiting(ids)
  discard(ids)
  leave_places(places)
end
