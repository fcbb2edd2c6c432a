-- Return items of one state.
--
-- Keys: queue, gone, deadlines, scheduled, ledger, options, errors
-- Arguments:
--   prefix     text     the queue's name
--   now_ms     integer  the time; empty: the server's time
--   state      text     "waiting", "leased" or "scheduled"
--   start      integer  the first place to return: 0 is the next to be leased, to expire
--       or to fall due; -1 is the last
--   count      count    how many items to return
--   max_bytes  integer  the maximum of data to return; further items come without data
-- Reply: the time in ms, then for each item: id, size (-1: no data, a ghost; or its key is no string),
--   data (false: left out), when it falls due or its lease expires in ms (-1: never), holder or false,
--   token, attempt, when it was last leased in ms (token, attempt and this are 0 if it was never
--   leased), the error of its last attempt (at most 1,000 bytes; false: none), its options and its
--   progress as JSON (false: none).
-- Cost: O(log n + count); O(start) into the waiting list.
-- Limits: at most 1,000 items a call.
-- Uses: now (clock), ID_AT, LANE_END, TO_NO_LEVEL (encodings), extend, paired, reversed (lists), add_views,
--   holders_of (view)

-- Return ids from a place on, in about the order in which they will be leased: those in the queue, then by
-- levels the lanes and, before the groups of level 0, what is held.
local function waiting_slice(first, number)
  local held, laned = prefix .. ':held', prefix .. ':lanes'
  local above = redis.call('ZLEXCOUNT', laned, '-', TO_NO_LEVEL)
  -- stylua: ignore
  local parts = {
    { queue, redis.call('LLEN', queue) }, { laned, above, 0 },
    { held, redis.call('LLEN', held) }, { laned, redis.call('ZCARD', laned) - above, above },
  }
  local found, total = {}, 0
  for _, part in ipairs(parts) do
    total = total + part[2]
  end
  if first < 0 then
    number = math.max(0, total + first + number) - math.max(0, total + first)
    first = math.max(0, total + first)
  end
  for _, part in ipairs(parts) do
    local key, length, base = unpack(part)
    local wanted = math.min(number, length - first)
    if wanted > 0 then
      if base then
        for _, member in ipairs(redis.call('ZRANGE', key, base + first, base + first + wanted - 1)) do
          local cut = string.find(member, LANE_END, 1, true) -- else another client has written it
          found[#found + 1] = cut and string.sub(member, cut + ID_AT) or nil
        end
      else
        extend(found, reversed(redis.call('LRANGE', key, -first - wanted, -first - 1)))
      end
      number = number - wanted
    end
    first = math.max(0, first - length)
  end
  return found
end

local ids, times
if state == 'waiting' then
  ids, times = waiting_slice(start, count), {}
else
  local last = start + count - 1
  if start < 0 and last >= 0 then last = -1 end
  local key = state == 'leased' and deadlines or scheduled
  ids, times = paired(redis.call('ZRANGE', key, start, last, 'WITHSCORES'))
  for i, time in ipairs(times) do
    times[i] = tonumber(time)
  end
end

local reply = { now }
add_views(reply, ids, times, max_bytes, holders_of(ids))
return reply
