-- Bring back what is due: expired leases, scheduled items, inboxes of sessions that have expired.
--
-- Needs: prefix, deadlines, scheduled, ledger, sessions, return_front
-- Gives: reclaim

local function reclaim_leases(most)
  local expired = redis.call('ZRANGEBYSCORE', deadlines, '-inf', now, 'LIMIT', 0, most)
  local back, finished = {}, {}
  for _, id in ipairs(expired) do
    if redis.call('EXISTS', data_key(id)) == 0 then
      finished[#finished + 1] = id -- completed by a foreign client
    else
      local left = foreign_lease_left(id)
      if left then
        watch_foreign(id, left)
      else
        back[#back + 1] = id
      end
    end
  end
  leave_leased(finished)
  in_chunks('HDEL', ledger, finished)
  leave_leased(back)
  enter_waiting(back, return_front)
  emit_all('vanished', finished)
  emit_all('expired', back, return_front and '1')
  return #back, #expired
end

local function reclaim_scheduled(most)
  local due = redis.call('ZRANGEBYSCORE', scheduled, '-inf', now, 'LIMIT', 0, most)
  local back = {}
  for _, id in ipairs(due) do
    local exists = redis.call('EXISTS', data_key(id)) == 1
    -- Under lease: a foreign cleaner had moved it into the list before it was due.
    if exists and not redis.call('ZSCORE', deadlines, id) then
      back[#back + 1] = id
    end
  end
  in_chunks('ZREM', scheduled, due)
  in_chunks('UNLINK', nil, lease_keys_of(back))
  enter_waiting(back, false)
  emit_all('due', back)
  return #back, #due
end

local function reclaim_inboxes(most)
  local expired = redis.call('ZRANGEBYSCORE', sessions, '-inf', now, 'LIMIT', 0, 10)
  local back = 0
  for _, absent in ipairs(expired) do
    local seen = empty_inbox(prefix .. ':inbox:' .. absent, most - back)
    back = back + seen
    if back < most then
      redis.call('ZREM', sessions, absent)
    end
  end
  return back, back == most or #expired == 10
end

-- Returns how many items came back, and whether there may be more to bring back.
local function reclaim(most)
  local leases, expired = reclaim_leases(most)
  local delayed, due = reclaim_scheduled(most)
  local parked, more_parked = reclaim_inboxes(most)
  return leases + delayed + parked, expired == most or due == most or more_parked
end
