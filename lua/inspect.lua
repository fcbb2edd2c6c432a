-- Return items of one state.
--
-- Keys: queue, gone, deadlines, scheduled, ledger, options, errors
-- Arguments:
--   prefix     text     the queue's name
--   now_ms     integer  the time; empty: the server's time
--   state      text     "waiting", "leased" or "scheduled"
--   start      integer  the first place to return: 0 is the next to be leased, to expire or to fall due; -1 is the last
--   count      count    how many items to return
--   max_bytes  integer  the maximum of data to return; further items come without data
-- Reply: the time in ms, then for each item: id, size (-1: no data, a ghost; or its key is no string), data (false: left out), when it
--   falls due or its lease expires in ms (-1: never), holder or false, token, attempt, when it was last
--   leased in ms (token, attempt and this are 0 if it was never leased), the error of its last attempt (at most
--   1,000 bytes; false: none), its options as JSON (false: none).
-- Cost: O(log n + count); O(start) into the waiting list.
-- Limits: at most 1,000 items a call.

local ids, times = {}, {}
if state == 'waiting' then
  -- The next to be leased is at the right end.
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
