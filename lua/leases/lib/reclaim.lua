-- Reclaim expired leases, due items, and the inboxes of sessions that have expired.
--
-- Needs: prefix, queue, deadlines, scheduled, ledger, sessions, return_front
-- Gives: can_reclaim, reclaim
-- Uses: begin_writes (begin_writes), now (clock), emit_all (emit), forget_facts (facts), foreign_lease_left,
--   watch_foreign (foreign), first_due, first_end (heads), empty_inbox (inbox), data_key, in_chunks (keys),
--   drop_lease_keys (move), check_processing, unlist_or_note (processing), free_leases, note_options (slots),
--   enter_waiting (waiting)

-- Return ids of `deadlines` or `scheduled` whose time has come, those of them that return to the queue, and
-- those of finished items. A foreign lease is watched, and a due item that is leased is left alone: a foreign
-- cleaner has moved it into the list.
local function find_due(key, limit)
  local due = redis.call('ZRANGEBYSCORE', key, '-inf', now, 'LIMIT', 0, limit)
  local ids, vanished = {}, {}
  for _, id in ipairs(due) do
    local left = foreign_lease_left(id)
    if redis.call('EXISTS', data_key(id)) == 0 then
      vanished[#vanished + 1] = id
    elseif key == deadlines or not redis.call('ZSCORE', deadlines, id) then
      if left then
        watch_foreign(id, left)
      else
        ids[#ids + 1] = id
      end
    end
  end
  return due, ids, vanished
end

local function reclaim_leases(limit)
  local expired, ids, vanished = find_due(deadlines, limit)
  note_options(expired)
  enter_waiting(ids, return_front, false, true)
  forget_facts(vanished)
  in_chunks('HDEL', ledger, vanished)
  for _, ended in ipairs({ ids, vanished }) do
    in_chunks('ZREM', deadlines, ended)
    unlist_or_note(ended)
    drop_lease_keys(ended)
    free_leases(ended)
  end
  emit_all('vanished', vanished)
  emit_all('expired', ids, return_front and '1')
  return #ids, #expired == limit
end

local function reclaim_scheduled(limit)
  local due, ids = find_due(scheduled, limit)
  enter_waiting(ids, false)
  in_chunks('ZREM', scheduled, due)
  drop_lease_keys(ids)
  emit_all('due', ids)
  return #ids, #due == limit
end

local function reclaim_inboxes(expired, limit)
  local moved = 0
  for _, absent in ipairs(expired) do
    moved = moved + empty_inbox(prefix .. ':inbox:' .. absent, limit - moved)
    if moved < limit then redis.call('ZREM', sessions, absent) end
  end
  return moved, moved == limit or #expired == 10
end

local absent = redis.call('ZRANGEBYSCORE', sessions, '-inf', now, 'LIMIT', 0, 10)
local any_expired, any_due = first_end and first_end <= now, first_due and first_due <= now
-- Whether there is anything to reclaim.
local can_reclaim = any_expired or any_due or absent[1]

-- Reclaim up to `limit` of each; returns whether there may be more, and how many ids were reclaimed.
-- `inbox_`: a list that the script continues with.
local function reclaim(limit, inbox_)
  local leases, delayed, inboxes, more_leases, more_delayed, more = 0, 0, 0, false, false, false
  -- Read before anything is written, as all keys are.
  redis.call('LLEN', queue)
  redis.call('LLEN', inbox_ or queue)
  redis.call('HLEN', ledger)
  check_processing()
  begin_writes() -- ids must return even then
  if any_expired then
    leases, more_leases = reclaim_leases(limit)
  end
  if any_due then
    delayed, more_delayed = reclaim_scheduled(limit)
  end
  if absent[1] then
    inboxes, more = reclaim_inboxes(absent, limit)
  end
  return more_leases or more_delayed or more, leases + delayed + inboxes
end
