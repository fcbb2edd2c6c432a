-- Put orphans back into the queue: ids with data that were in no list when the deep clean looked.
--
-- A walk may miss an id that moves. So an orphan is marked first: its lease key becomes `LOST` and `clean`,
-- which whatever moves the item then overwrites or removes. After it, the lists are walked once more, and an
-- orphan is put back only if it has its mark still. So of any number of cleaners one puts it back. If the key
-- says a place in a lane, the item may wait there, and the mark is added to it: `WAITING`, the place, a blank
-- and `clean`.
--
-- An id that has been leased since then is left alone. An id that a foreign client has taken but not yet
-- leased gets a short grace, as in `light_clean`. If the lease keys of an id show a lease of ours or a delay,
-- its entry of `deadlines` or `scheduled` was lost, and is written again.
--
-- Keys: queue, processing, gone, deadlines, scheduled, ledger, sessions, options, errors, events
-- Arguments:
--   prefix      text     the queue's name
--   now_ms      integer  the time; empty: the server's time
--   started_ms  integer  when this deep clean began
--   grace_ms    integer  how long an id that a foreign client has just taken is left alone
--   step        text     "mark"; "restore": those that have the mark; "unmark": those that were found since
--   clean       text     a text without blanks that no other clean has; empty: restore without marks
--   orphans     rest     ids
-- Reply: how many ids were put back, and a list of repairs: kind, id, ….
-- Cost: O(log n) per id, plus a read of 1,000 entries of `processing`, 500 at each
--   end of `queue`, and of inboxes.
-- Limits: at most 1,000 ids a call.
-- Uses: held_key (RARE_KEYS), now (clock), is_closed (closed), controlled (controlled), emit_all, flush
--   (emit), LOST, SCHEDULED, WAITING (encodings), foreign_lease_left, watch_foreign (foreign), data_key,
--   in_chunks, lease_keys_of, place_in (keys), read_ledger (ledger), set_of, values_from (lists),
--   lease_key_left, rederive_lease (rederive), repaired, repaired_all, repairs (repairs), wake_next (slots),
--   enter_waiting, find_member (waiting)

if is_closed then
  return { 0, repairs } -- what has data is about to be deleted
end
local mark = LOST .. clean
redis.call('LLEN', queue)
redis.call('ZCARD', sessions)

local ids = values_from(ARGV, orphans + 1)
-- Of each id both lease keys. One of another type counts as none.
local lease_keys = lease_keys_of(ids)
local holders = #ids > 0 and redis.call('MGET', unpack(lease_keys)) or {}

-- Return the value of a lease key that says a place.
local function waiting_at(place) return WAITING .. place end

-- Return whether the value of a lease key is a mark of this clean.
local function is_mark(holder)
  local place = place_in(holder)
  return holder == mark or (place and holder == waiting_at(place) .. ' ' .. clean)
end

if step == 'unmark' then
  for i = 1, #ids do
    local key, holder = lease_keys[2 * i - 1], holders[2 * i - 1]
    if is_mark(holder) and place_in(holder) then
      redis.call('SET', key, waiting_at(place_in(holder)), 'KEEPTTL')
    elseif is_mark(holder) then
      redis.call('UNLINK', key)
    end
  end
  return { 0, repairs }
end

-- Ids that wait near an end of a list, or are on their way to a session.
local is_waiting = {}
local function note_waiting(list, from, to)
  for _, id in ipairs(redis.call('LRANGE', list, from, to)) do
    is_waiting[id] = true
  end
end
if step == 'restore' then
  for _, list in ipairs({ queue, controlled and held_key or nil }) do
    note_waiting(list, 0, 499)
    note_waiting(list, -500, -1)
  end
  for _, session in ipairs(redis.call('ZRANGE', sessions, 0, 999)) do
    note_waiting(prefix .. ':inbox:' .. session, 0, 99)
  end
end

-- The youngest entries: there are the ids that other clients are just taking.
local is_taken = set_of(redis.call('LRANGE', processing, 0, 999))

-- Mark an orphan, unless the key has another type, or return whether it is marked still.
local function has_mark(i)
  local key, holder = lease_keys[2 * i - 1], holders[2 * i - 1]
  if step == 'mark' and place_in(holder) then
    redis.call('SET', key, waiting_at(place_in(holder)) .. ' ' .. clean, 'KEEPTTL')
  elseif step == 'mark' then
    redis.call('SET', key, mark, 'PX', 600000, holder and 'XX' or 'NX')
  end
  return step ~= 'mark'
    and (clean == '' or is_mark(holder) or (not holder and redis.call('EXISTS', key) == 1))
end

local restored, leased, unlisted, delayed, unmarked = {}, {}, {}, {}, {}
for i, id in ipairs(ids) do
  local _, _, _, leased_at = read_ledger(redis.call('HGET', ledger, id))
  local moved = redis.call('ZSCORE', deadlines, id)
    or redis.call('ZSCORE', scheduled, id)
    or ((leased_at or 0) >= started_ms and leased_at <= now + 1000)
    or redis.call('EXISTS', data_key(id)) == 0
    or is_waiting[id]
    or (controlled and find_member(id))
  if not moved then
    local any_lease = holders[2 * i] or (holders[2 * i - 1] and not is_mark(holders[2 * i - 1]))
    local left = any_lease and foreign_lease_left(id)
    local ours_left = any_lease and not left and rederive_lease(id)
    local delay_left = any_lease and not left and lease_key_left(id, SCHEDULED)
    if ours_left then
      leased[#leased + 1], leased[#leased + 2] = now + ours_left, id
      if not is_taken[id] then unlisted[#unlisted + 1] = id end
      repaired('lost_lease', id)
    elseif delay_left then
      delayed[#delayed + 1], delayed[#delayed + 2] = now + delay_left, id
      repaired('lost_delay', id)
    elseif left then
      watch_foreign(id, left)
    elseif is_taken[id] then
      watch_foreign(id, grace_ms)
    elseif has_mark(i) then
      restored[#restored + 1] = id
      unmarked[#unmarked + 1] = is_mark(holders[2 * i - 1]) and id or nil
    end
  end
end
in_chunks('LPUSH', processing, unlisted)
in_chunks('ZADD', deadlines, leased)
in_chunks('ZADD', scheduled, delayed)
enter_waiting(restored, false)
for _, id in ipairs(unmarked) do
  local key = prefix .. ':lease:' .. id
  if is_mark(redis.call('GET', key)) then -- else it waits in a lane
    redis.call('UNLINK', key)
  end
end
repaired_all('lost_item', restored)
emit_all('restored', restored)
wake_next()
flush()
return { #restored, repairs }
