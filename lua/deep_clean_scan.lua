-- One step of the search for orphans: ids with data that no state of ours explains.
--
-- Most of them simply wait; the walk over the lists tells those apart.
--
-- Keys: deadlines, scheduled
-- Arguments:
--   prefix   text     the queue's name
--   now_ms   integer  the time, or empty for the server's
--   pattern  text     matches the data keys of this queue and no others (glob characters escaped)
--   cursor   text     "0" at first, then what the last call gave
--   count    integer  how many keys of the database to look at, roughly
-- Reply: the time in ms, the next cursor ("0": done), then ids.
-- Cost: O(count log n).
-- Limits: one SCAN of `count` (at most 1,000) a call.

redis.call('ZCARD', scheduled)
local page = redis.call('SCAN', cursor, 'MATCH', pattern, 'COUNT', count, 'TYPE', 'string')
local ids = {}
for i, key in ipairs(page[2]) do
  ids[i] = string.sub(key, #prefix + #':item:' + 1)
end
local reply = { now, page[1] }
for from = 1, #ids, 1000 do
  local to = math.min(from + 999, #ids)
  local leased = redis.call('ZMSCORE', deadlines, unpack(ids, from, to))
  local due = redis.call('ZMSCORE', scheduled, unpack(ids, from, to))
  for i = 1, #leased do
    if not leased[i] and not due[i] then
      reply[#reply + 1] = ids[from + i - 1]
    end
  end
end
return reply
