-- Look at items and dead letters by their ids, and in which state each is, without touching them.
--
-- An item that is neither scheduled nor under anybody's lease counts as waiting: the list is not searched. An id
-- that was added again after it died is both an item and a dead letter: both are in the reply, as of the same moment.
--
-- Keys: deadlines, scheduled, ledger, dead
-- Arguments:
--   prefix     text     the queue's name
--   now_ms     integer  the time, or empty for the server's
--   max_bytes  integer  give no more data than this; what is further comes without
--   which      text     "living": items; "dead": dead letters; "all": both
--   wanted     rest     ids
-- Reply: the time in ms and, for each id of which there is an item, its state and the eight values of `inspect`;
--   then for each of which there is a dead letter "dead", id, size, data, -1, error, token, attempt and
--   the time of its death in ms (0: unknown).
-- Cost: O(log n) per id.
-- Limits: at most 1,000 ids a call.

local ids, reply, room = {}, { now }, max_bytes
for at = wanted + 1, #ARGV do
  ids[#ids + 1] = ARGV[at]
end

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
      -- Leases of foreign clients have a key alone, until a clean has seen them.
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
  local base, died = #reply, redis.call('ZMSCORE', dead, unpack(ids))
  for i, id in ipairs(ids) do
    local size, data, error_, attempt, token = read_dead_letter(id, room)
    if size >= 0 then
      room = data and room - size or room
      reply[base + 1], reply[base + 2], reply[base + 3], reply[base + 4] = 'dead', id, size, data
      reply[base + 5], reply[base + 6], reply[base + 7] = -1, error_, token
      reply[base + 8], reply[base + 9] = attempt, tonumber(died[i] or 0)
      base = base + 9
    end
  end
end
return reply
