-- Reclaim what is due, and repair part of `processing`.
--
-- Entries of finished items are dropped. An entry that no lease of ours explains belongs to a foreign client:
-- from now on its lease is watched. If it has none, because the client is between taking the id and writing
-- its lease key, it gets a short grace, and is reclaimed after that as an expired lease is.
--
-- Keys: queue, processing, gone, deadlines, scheduled, ledger, sessions, events
-- Arguments:
--   prefix        text     the queue's name
--   now_ms        integer  the time; empty: the server's time
--   return_front  flag     where expired items go: 1 to the front, 0 to the end
--   grace_ms      integer  how long an entry without a lease is left alone
--   count         count    how many entries to check
-- Reply: the number of entries in `processing`, items reclaimed, entries dropped, entries watched from now
--   on, 1 if more is due.
-- Cost: O(log n) per entry.
-- Limits: `count` entries (at most 1,000) and 100 reclaimed a call; call again for the rest.
-- Needs: check

redis.call('ZCARD', sessions)
local reclaimed, more = reclaim(100)

local old = redis.call('LRANGE', processing, -count, -1)
local noted = noted_among(old)
local kept, swept, seen = {}, {}, {}
local dropped, watched = 0, 0
for i = #old, 1, -1 do
  local id = old[i]
  if noted[id] and not swept[id] then
    swept[id] = true
    redis.call('SREM', gone, id)
    dropped = dropped + 1
  elseif seen[id] or redis.call('EXISTS', data_key(id)) == 0 then
    dropped = dropped + 1
  else
    seen[id] = true
    kept[#kept + 1] = id
    if not redis.call('ZSCORE', deadlines, id) then
      watch_foreign(id, foreign_lease_left(id) or grace_ms)
      watched = watched + 1
    end
  end
end
if #old > 0 then
  redis.call('LTRIM', processing, 0, -#old - 1)
  in_chunks('LPUSH', processing, kept)
else
  redis.call('UNLINK', gone)
end
flush()
return { redis.call('LLEN', processing), reclaimed, dropped, watched, more and 1 or 0 }
