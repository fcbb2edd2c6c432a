-- Reclaim expired leases, due items, and the inboxes of sessions that have expired.
--
-- Needs: prefix, deadlines, scheduled, ledger, sessions, return_front
-- Gives: reclaim

local function reclaim_leases(limit)
  local expired = redis.call('ZRANGEBYSCORE', deadlines, '-inf', now, 'LIMIT', 0, limit)
  local ids, vanished = {}, {}
  for _, id in ipairs(expired) do
    if redis.call('EXISTS', data_key(id)) == 0 then
      vanished[#vanished + 1] = id -- completed by a foreign client
    else
      local left = foreign_lease_left(id)
      if left then
        watch_foreign(id, left)
      else
        ids[#ids + 1] = id
      end
    end
  end
  leave_leased(vanished)
  in_chunks('HDEL', ledger, vanished)
  leave_leased(ids)
  enter_waiting(ids, return_front)
  emit_all('vanished', vanished)
  emit_all('expired', ids, return_front and '1')
  return #ids, #expired
end

local function reclaim_scheduled(limit)
  local due = redis.call('ZRANGEBYSCORE', scheduled, '-inf', now, 'LIMIT', 0, limit)
  local ids = {}
  for _, id in ipairs(due) do
    local exists = redis.call('EXISTS', data_key(id)) == 1
    -- It is under lease if a foreign cleaner has moved it into the list before it was due.
    if exists and not redis.call('ZSCORE', deadlines, id) then
      ids[#ids + 1] = id
    end
  end
  in_chunks('ZREM', scheduled, due)
  in_chunks('UNLINK', nil, lease_keys_of(ids))
  enter_waiting(ids, false)
  emit_all('due', ids)
  return #ids, #due
end

local function reclaim_inboxes(limit)
  local expired = redis.call('ZRANGEBYSCORE', sessions, '-inf', now, 'LIMIT', 0, 10)
  local moved = 0
  for _, absent in ipairs(expired) do
    moved = moved + empty_inbox(prefix .. ':inbox:' .. absent, limit - moved)
    if moved < limit then
      redis.call('ZREM', sessions, absent)
    end
  end
  return moved, moved == limit or #expired == 10
end

-- Reclaim up to `limit` of each; returns how many ids were reclaimed, and whether there may be more.
local function reclaim(limit)
  local leases, expired = reclaim_leases(limit)
  local delayed, due = reclaim_scheduled(limit)
  local inboxes, more = reclaim_inboxes(limit)
  return leases + delayed + inboxes, expired == limit or due == limit or more
end
