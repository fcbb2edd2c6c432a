-- Reclaim what is due, and repair part of `processing`.
--
-- Entries of finished items are dropped. An entry that no lease of ours explains belongs to a foreign client:
-- from now on its lease is watched. If it has none, because the client is between taking the id and writing
-- its lease key, it gets a short grace, and is reclaimed after that as an expired lease is. If the lease keys
-- show a lease of ours, its entry of `deadlines` was lost, and is written again.
--
-- Ids that are free again leave `:recent`.
--
-- Keys: queue, processing, gone, deadlines, scheduled, ledger, sessions, options, errors, events
-- Arguments:
--   prefix        text     the queue's name
--   now_ms        integer  the time; empty: the server's time
--   return_front  flag     where expired items go: 1 to the front, 0 to the end
--   grace_ms      integer  how long an entry without a lease is left alone
--   count         count    how many entries to check
--   started_ms    integer  in the call that ends a walk over `processing`: when the walk began; else 0
-- Reply: the number of entries in `processing`, items reclaimed, entries dropped, entries watched from now
--   on, 1 if more is due, the time in ms, and a list of repairs: kind, id, ….
-- Cost: O(log n) per entry.
-- Limits: `count` entries (at most 1,000) and 100 reclaimed a call; call again for the rest.
-- Uses: held_key, recent_key (RARE_KEYS), now (clock), heal_lanes (control), controlled (controlled), flush
--   (emit), foreign_lease_left, watch_foreign (foreign), in_chunks, place_in (keys), check_processing, sift,
--   without (processing), any_rare (rare), can_reclaim, reclaim (reclaim), rederive_lease (rederive),
--   repaired, repairs (repairs), wake_next (slots), bound_leases, slack_ms (steps)

local free_again = any_rare and redis.call('ZRANGEBYSCORE', recent_key, '-inf', now, 'LIMIT', 0, count) or {}
local known = redis.call('ZCARD', gone)
local more, reclaimed = false, 0
if can_reclaim then
  more, reclaimed = reclaim(100)
end
bound_leases(100)
local noted_now = check_processing() - known
local old = redis.call('LRANGE', processing, -count, -1)
local whole = #old < count
local staying, unexplained, noted, met = sift(old, {})

local near_an_end
-- Return whether an item is scheduled, or in the queue near one of its ends.
local function is_elsewhere(id)
  if not near_an_end then
    near_an_end = {}
    for _, list in ipairs({ queue, controlled and held_key or nil }) do
      for _, waiting in ipairs(redis.call('LRANGE', list, 0, 999)) do
        near_an_end[waiting] = true
      end
      for _, waiting in ipairs(redis.call('LRANGE', list, -1000, -1)) do
        near_an_end[waiting] = true
      end
    end
  end
  return near_an_end[id]
    or redis.call('ZSCORE', scheduled, id)
    or (controlled and place_in(redis.pcall('GET', prefix .. ':lease:' .. id)))
end

local left_over, watched, leased = {}, {}, {}
for _, id in ipairs(unexplained) do
  local left = foreign_lease_left(id)
  local ours_left = not left and not is_elsewhere(id) and rederive_lease(id)
  if ours_left then
    leased[#leased + 1], leased[#leased + 2] = now + ours_left, id
    repaired('lost_lease', id)
  elseif left or not is_elsewhere(id) then
    watched[#watched + 1] = { id, left or grace_ms }
  else
    left_over[id] = true
    met[#met + 1] = noted[id] and id or nil
  end
end
local kept = without(staying, left_over)

-- Once all entries were checked, what was noted before has no entry.
local void = {}
if whole or started_ms > 0 then
  local till = whole and '+inf' or string.format('(%.0f', started_ms)
  void = redis.call('ZRANGEBYSCORE', gone, '-inf', till, 'LIMIT', 0, count)
  more = more or #void == count
end
local noted_ahead = string.format('(%.0f', now + slack_ms)
in_chunks('ZREM', gone, redis.call('ZRANGEBYSCORE', gone, noted_ahead, '+inf', 'LIMIT', 0, count))

in_chunks('ZADD', deadlines, leased)
for _, item in ipairs(watched) do
  watch_foreign(item[1], item[2])
end
if #old > 0 then
  in_chunks('LPUSH', processing, kept)
  redis.call('LTRIM', processing, 0, -#old - 1)
end
in_chunks('ZREM', gone, met)
in_chunks('ZREM', gone, void)
in_chunks('ZREM', recent_key, free_again)
if controlled then heal_lanes() end
wake_next()
flush()
local dropped = #old - #kept - math.min(noted_now, #met) -- entries of items reclaimed just now do not count
return { redis.call('LLEN', processing), reclaimed, dropped, #watched, more and 1 or 0, now, repairs }
