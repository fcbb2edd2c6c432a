-- The moves between the states of an item. Each takes a list of ids; `enter_…` follows `leave_…`.
--
-- Needs: queue, deadlines, scheduled, lease_keys_of, in_chunks, unlist
-- Gives: leave_leased, leave_waiting, enter_ready, enter_scheduled

local function leave_leased(ids)
  in_chunks('ZREM', deadlines, ids)
  unlist(ids)
  in_chunks('UNLINK', nil, lease_keys_of(ids))
end

-- For an item that is completed although it waits again (its slow worker came first). Near an end of
-- the list it is removed; deeper, its id stays behind without data and is dropped when it is met.
local function leave_waiting(id)
  if redis.call('ZREM', scheduled, id) == 1 then
    in_chunks('UNLINK', nil, lease_keys_of({ id })) -- what guarded it
    return
  end
  if redis.call('LPOS', queue, id, 'MAXLEN', 256) then
    redis.call('LREM', queue, 1, id)
  elseif redis.call('LPOS', queue, id, 'RANK', -1, 'MAXLEN', 256) then
    redis.call('LREM', queue, -1, id)
  end
end

-- The first id of the list is the first to be leased again, at either side.
local function enter_ready(ids, front)
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

-- A delayed item carries a lease key until it is due, so that foreign deep cleaners leave it alone.
local function enter_scheduled(id, due, delay)
  redis.call('ZADD', scheduled, due, id)
  redis.call('SET', lease_keys_of({ id })[1], 'lh:scheduled', 'PX', delay)
end
