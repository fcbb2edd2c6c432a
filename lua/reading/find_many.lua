-- Return items and dead letters by their ids, with the state of each.
--
-- An item that is neither scheduled nor leased by any client is reported as waiting; the list is not
-- searched. If an id was added again after its item died, the reply has both the item and the dead letter, as
-- of the same moment.
--
-- Keys: gone, deadlines, scheduled, ledger, dead, options, errors
-- Arguments:
--   prefix     text     the queue's name
--   now_ms     integer  the time; empty: the server's time
--   max_bytes  integer  the maximum of data to return; further items come without data
--   which      text     "living": items; "dead": dead letters; "all": both
--   entries    rest     ids
-- Reply: the time in ms; for each id of an item its state and the eleven values of `inspect`; then for each
--   id of a dead letter "dead", id, size, data, -1, false, token, attempt, the time of its death in ms (0:
--   unknown), its error, its options or false, and false.
-- Cost: O(log n) per id.
-- Limits: at most 1,000 ids a call.
-- Uses: now (clock), dead_key, read_dead_letter (dead_letter), lease_keys_of (keys), append, values_from
--   (lists), add_views, holders_of (view)

local ids, reply, room = values_from(ARGV, entries + 1), { now }, max_bytes

if which ~= 'dead' then
  local states, times = {}, {}
  local due_at = redis.call('ZMSCORE', scheduled, unpack(ids))
  local ends = redis.call('ZMSCORE', deadlines, unpack(ids))
  local holders = holders_of(ids)
  for i, id in ipairs(ids) do
    if due_at[i] then
      states[i], times[i] = 'scheduled', tonumber(due_at[i])
    elseif ends[i] then
      states[i], times[i] = 'leased', tonumber(ends[i])
    elseif holders[i] then
      -- A lease of a foreign client has only a key until a clean has found it.
      local left_ms = -1
      for _, key in ipairs(lease_keys_of({ id })) do
        left_ms = math.max(left_ms, redis.call('PTTL', key))
      end
      states[i], times[i] = 'leased', left_ms >= 0 and now + left_ms
    else
      states[i] = 'waiting'
    end
  end
  room = add_views(reply, ids, times, room, holders, states)
end

if which ~= 'living' then
  local died = redis.call('ZMSCORE', dead, unpack(ids))
  for i, id in ipairs(ids) do
    local size, data, error_, attempt, token = read_dead_letter(id, room)
    if size >= 0 then
      room = data and room - size or room
      local options_ = redis.call('HGET', dead_key(id), 'options')
      append(reply, 'dead', id, size, data, -1, false, token)
      append(reply, attempt, tonumber(died[i] or 0), error_, options_, false)
    end
  end
end
return reply
