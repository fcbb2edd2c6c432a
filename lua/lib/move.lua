-- Move ids out of and into the states. Call `leave_…` before `enter_…`.
--
-- Needs: queue, deadlines, scheduled
-- Gives: leave_leased, enter_waiting, enter_scheduled

-- End leases. `unlisted`: the ids have been removed from `processing`.
local function leave_leased(ids, unlisted)
  in_chunks('ZREM', deadlines, ids)
  unlist(unlisted and {} or ids)
  in_chunks('UNLINK', nil, lease_keys_of(ids))
end

-- Put ids into the queue. At either end, the first of them is the first to be leased.
local function enter_waiting(ids, front)
  if front then
    local reversed = {}
    for i = #ids, 1, -1 do
      reversed[#reversed + 1] = ids[i]
    end
    in_chunks('RPUSH', queue, reversed)
  else
    in_chunks('LPUSH', queue, ids)
  end
end

-- Schedule items: pairs of an id and its delay in ms. A scheduled item has a lease key until it is due, so that
-- foreign deep cleaners leave it alone.
local function enter_scheduled(delayed)
  local soonest
  for _, item in ipairs(delayed) do
    local id, delay = item[1], item[2]
    redis.call('ZADD', scheduled, now + delay, id)
    redis.call('SET', lease_keys_of({ id })[1], 'lh:scheduled', 'PX', delay)
    soonest = math.min(soonest or delay, delay)
  end
  announce(soonest)
end
