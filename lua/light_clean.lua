-- One step of a walk over `processing`: bring back what is due, and put in order what others left.
--
-- Entries that are done are dropped. An entry that no lease of ours explains belongs to a foreign
-- client: its lease is watched from now on, or, if it has none, it gets a short grace (a client between
-- taking an id and writing its lease key), after which it is brought back as any expired lease.
--
-- Keys: queue, processing, gone, deadlines, scheduled, ledger, sessions, events
-- Arguments:
--   prefix        text     the queue's name
--   now_ms        integer  the time, or empty for the server's
--   return_front  flag     where expired items go: 1 to the front, 0 to the end
--   grace_ms      integer  how long an entry without any lease is left alone
--   count         integer  how many entries to look at
-- Reply: entries in `processing`, items brought back, entries dropped, entries adopted, 1 if more is due.
-- Cost: O(log n) per entry.
-- Limits: `count` entries (at most 1,000) and 100 brought back a call; call again for the rest.
-- Needs: check

redis.call('ZCARD', sessions)
local back, more = reclaim(100)

local old = redis.call('LRANGE', processing, -count, -1)
local noted = noted_among(old)
local kept, swept, met = {}, {}, {}
local dropped, adopted = 0, 0
for i = #old, 1, -1 do
  local id = old[i]
  if noted[id] and not swept[id] then
    swept[id] = true
    redis.call('SREM', gone, id)
    dropped = dropped + 1
  elseif met[id] or redis.call('EXISTS', data_key(id)) == 0 then
    dropped = dropped + 1
  else
    met[id] = true
    kept[#kept + 1] = id
    if not redis.call('ZSCORE', deadlines, id) then
      watch_foreign(id, foreign_lease_left(id) or grace_ms)
      adopted = adopted + 1
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
return { redis.call('LLEN', processing), back, dropped, adopted, more and 1 or 0 }
