-- Look at items of one state without touching them.
--
-- Keys: queue, deadlines, scheduled, ledger
-- Arguments:
--   prefix     text     the queue's name
--   now_ms     integer  the time, or empty for the server's
--   state      text     "waiting", "leased" or "scheduled"
--   start      integer  where to begin: 0 is next in line or the first to fall due; -1 is the last
--   count      integer  how many
--   max_bytes  integer  give no more data than this; further items come without theirs
-- Reply: the time in ms, then for each item: id, size (-1: no data, a ghost), data (false: left out),
--   time it falls due or its lease ends in ms (-1: none), holder or false, token, attempt,
--   time of the last delivery in ms (0, 0, 0: never leased).
-- Cost: O(log n + count); O(start) into the waiting list.
-- Limits: at most 1,000 items a call.

local ids, times = {}, {}
if state == 'waiting' then
  -- The next in line is at the right end.
  local from, to = -start - count, -start - 1
  if start < 0 then
    from, to = -start - 1 - (count - 1), -start - 1
    from = math.max(from, 0)
  end
  local slice = redis.call('LRANGE', queue, from, to)
  for i = #slice, 1, -1 do
    ids[#ids + 1] = slice[i]
  end
else
  local last = start + count - 1
  if start < 0 and last >= 0 then
    last = -1
  end
  local pairs_ =
    redis.call('ZRANGE', state == 'leased' and deadlines or scheduled, start, last, 'WITHSCORES')
  for i = 1, #pairs_, 2 do
    ids[#ids + 1] = pairs_[i]
    times[#ids] = tonumber(pairs_[i + 1])
  end
end

local reply = { now }
add_views(reply, ids, times, max_bytes, holders_of(ids))
return reply
