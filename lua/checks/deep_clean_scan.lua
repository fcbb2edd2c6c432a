-- Return ids with data that are neither leased nor scheduled, one step of a scan at a time.
--
-- Most of these items wait; `deep_clean_walk` returns those.
--
-- Keys: deadlines, scheduled
-- Arguments:
--   prefix   text     the queue's name
--   now_ms   integer  the time; empty: the server's time
--   pattern  text     a glob that matches the data keys of this queue and no others
--   cursor   text     "0" in the first call, then the cursor of the last reply
--   count    count    about how many keys of the database to check
-- Reply: the time in ms, the next cursor ("0": done), then ids.
-- Cost: O(count log n).
-- Limits: one SCAN of `count` (at most 1,000) a call.
-- Uses: now (clock)

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
    if not leased[i] and not due[i] then reply[#reply + 1] = ids[from + i - 1] end
  end
end
return reply
