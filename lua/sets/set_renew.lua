-- Renew the leases of part of a set, and lease again into their places those of its items that only wait.
--
-- An item waits again when its lease has expired. It keeps its place if it is still in the incarnation that
-- was leased for the set, and no client holds it. Its id is removed from the waiting list if it is near one
-- of the ends, where reclaimed items are; deeper in the list it stays behind as a double. An item that is not
-- held after that, as all of them in a controlled queue, whose limits may not permit it, keeps its place,
-- too, as it may have been read before; `set_read` gives it up.
--
-- Keys: queue, processing, gone, deadlines, scheduled, ledger, fence, options, errors, events
-- Arguments:
--   prefix   text     the queue's name
--   now_ms   integer  the time; empty: the server's time
--   session  text     the holder: the value of the lease keys
--   set_many flag     1: the server has MSETEX and permits it, see `probe`
--   stream   text     the name of the stream
--   reader   text     the reader of the stream
--   set      text     the name of the set
--   start    integer  the first place of the set to check; 0 is its first item
--   count    count    how many places to check; 0: only return the size of the set
--   hold_ms  integer  the lease time, counted from now
-- Reply: 1, or 0 if another reader has taken over (then nothing was done); how many places the set has; how
--   many of those checked are held now; how many of these were leased again; how many are not held any more.
-- Cost: O(log n) per item; O(start) into the set; if some are leased again, 8,000 waiting ids are read.
-- Limits: at most 1,000 places a call.
-- Needs: check
-- Uses: begin_writes (begin_writes), now (clock), controlled (controlled), is_current (current), announce
--   (due), emit, emitting, flush (emit), is_ours (foreign), in_chunks, lease_keys_of (keys), begin_leases,
--   choose, chosen, drop_checked, last_token, take_tokens, write_leases (lease), read_ledger (ledger),
--   extend, reversed, set_of (lists), keep_shared_slot (shared_slot), is_stream_owner (stream_owner),
--   write_lease_keys (write_lease_keys)

local set_key = prefix .. ':set:' .. set
local reply = { is_stream_owner() and 1 or 0, redis.call('LLEN', set_key), 0, 0, 0 }
local places = redis.call('LRANGE', set_key, start, start + count - 1)
if count == 0 or #places == 0 or not is_stream_owner() then return reply end
local set_ids, tokens = {}, {}
for i, place in ipairs(places) do
  local token, id = string.match(place, '^(%d+) (.*)$')
  set_ids[i], tokens[i] = id or '', tonumber(token)
end
local set_records = redis.call('HMGET', ledger, unpack(set_ids))
local set_scores = redis.call('ZMSCORE', deadlines, unpack(set_ids))

local renewed, renewed_keys, overdue, again, place_of, sooner = {}, {}, {}, {}, {}, nil
local till = now + hold_ms
for i, id in ipairs(set_ids) do
  local first, last = read_ledger(set_records[i])
  if tokens[i] and is_current(id, tokens[i], set_scores[i], set_records[i]) then
    renewed[#renewed + 1], renewed[#renewed + 2] = till, id
    extend(renewed_keys, lease_keys_of({ id }))
    if till < tonumber(set_scores[i]) then sooner = hold_ms end
    if tonumber(set_scores[i]) <= now then overdue[#overdue + 1] = id end
    reply[3] = reply[3] + 1
    if emitting then emit('renewed', id, { holder = session, token = tokens[i], due = till }) end
  elseif tokens[i] then
    reply[5] = reply[5] + 1
    if first and first <= tokens[i] and tokens[i] <= last and not is_ours(set_scores[i]) then
      again[#again + 1], place_of[id] = id, i
    end
  end
end
begin_writes() -- leases must be renewed even then
for _, id in ipairs(overdue) do
  keep_shared_slot(id, till)
end
in_chunks('ZADD', deadlines, renewed)
write_lease_keys(renewed_keys, 1, #renewed_keys, hold_ms)
announce(sooner)

-- Remove ids from the waiting list if they are near one of its ends. A text that is no id is
-- written over each, and is then removed at that end; if it stays behind, it is dropped when it is
-- found, like an id without data.
local function remove_near_ends(wanted, left)
  local mark = string.format('%s %.0f', none, last_token)
  for _, young in ipairs({ true, false }) do
    local near = left > 0 and redis.call('LRANGE', queue, young and 0 or -4000, young and 3999 or -1) or {}
    local marked = 0
    for place, id in ipairs(near) do
      if wanted[id] then
        redis.call('LSET', queue, young and place - 1 or place - #near - 1, mark)
        marked = marked + 1
      end
    end
    if marked > 0 then
      redis.call('LREM', queue, young and marked or -marked, mark)
      left = left - marked
    end
  end
end

if #again > 0 and not controlled then
  -- Choose from them as from a queue: scheduled items and those under a foreign lease are left alone.
  choose(reversed(again), 0, #again, false, math.huge)
end
local count_again = #chosen
if count_again > 0 then
  local wanted = set_of(chosen)
  take_tokens()
  write_leases(count_again, hold_ms)
  for i, id in ipairs(chosen) do
    redis.call('LSET', set_key, start + place_of[id] - 1, string.format('%.0f', last_token + i) .. ' ' .. id)
  end
  begin_leases()
  remove_near_ends(wanted, count_again)
  reply[3], reply[4], reply[5] = reply[3] + count_again, count_again, reply[5] - count_again
end
drop_checked(0)
flush()
return reply
