-- Remove items that wait or are scheduled, the first ones first. Leased items stay.
--
-- Keys: queue, gone, deadlines, scheduled, ledger, watchers, options, errors, events
-- Arguments:
--   prefix  text     the queue's name
--   now_ms  integer  the time; empty: the server's time
--   source  text     where they are: "queue", "held" or "lanes" (waiting), "inboxes" (on their
--       way to a process), "scheduled"; "promoted" (of a group: in `queue`, to wake a session)
--   of_group text    only items of this group: then `source` is "lanes" or "promoted"; empty: all
--   count   count    how many ids to check; 0: the purge has ended
--   purged  integer  how many items it has removed, for the event
-- Reply: how many ids there were in that place, how many were checked, how many items were removed.
-- Cost: O(log n) per id.
-- Limits: `count` ids (at most 1,000) a call, except in inboxes: 100 of each of 1,000
--   sessions, which hold one or two.
-- Uses: begin_writes (begin_writes), end_control (control), controlled (controlled), emit, emitting, flush
--   (emit), HIGHEST_LEVEL, LEVEL_DIGITS, LOWEST_LEVEL (encodings), forget_facts (facts), foreign_lease_left,
--   watch_foreign (foreign), laned_of_group, promoted_of, waiting_in_group (groups), data_key, ids_in,
--   in_chunks, read_in_chunks (keys), append, extend, reversed (lists), wake_next (slots), find_waiting,
--   leave_places (waiting), notify_watchers (watchers)

if count == 0 then
  begin_writes()
  local group = of_group ~= '' and of_group or nil
  if emitting then emit('purged', '', { details = { count = purged, group = group } }) end
  wake_next() -- not before: that would move an item to where the purge was already
  flush()
  return { 0, 0, 0 }
end
local list_key = source == 'queue' and queue or prefix .. ':' .. source
local ids, members = {}, {}
local length
if source == 'promoted' then
  ids = promoted_of(of_group)
  length = #ids
elseif of_group ~= '' then
  members, ids = laned_of_group(of_group, '', count)
  length = 0
  for level = HIGHEST_LEVEL, LOWEST_LEVEL do
    length = length + waiting_in_group(string.format(LEVEL_DIGITS, level), of_group)
  end
elseif source == 'lanes' then
  length, members = redis.call('ZCARD', list_key), redis.call('ZRANGE', list_key, 0, count - 1)
  ids = ids_in(members)
elseif source == 'scheduled' then
  length, ids = redis.call('ZCARD', scheduled), redis.call('ZRANGE', scheduled, 0, count - 1)
elseif source == 'inboxes' then
  for _, session in ipairs(redis.call('ZRANGE', prefix .. ':sessions', 0, 999)) do
    extend(ids, redis.call('LRANGE', prefix .. ':inbox:' .. session, 0, 99))
  end
  length = #ids
else
  length, ids = redis.call('LLEN', list_key), reversed(redis.call('LRANGE', list_key, -count, -1))
end

redis.call('HLEN', ledger)
local scores = read_in_chunks('ZMSCORE', deadlines, ids)
local due = read_in_chunks('ZMSCORE', scheduled, ids)
local removed, keys, foreign, seen = {}, {}, {}, {}
for i, id in ipairs(ids) do
  local elsewhere = seen[id] or scores[i] or (due[i] and source ~= 'scheduled')
  seen[id] = true
  if not elsewhere and redis.call('EXISTS', data_key(id)) == 1 then
    local left = foreign_lease_left(id)
    if left then
      foreign[#foreign + 1] = { id, left }
    else
      removed[#removed + 1] = id
      append(keys, data_key(id), prefix .. ':lease:' .. id, prefix .. ':leased_by_session:' .. id)
    end
  end
end

local places = source == 'promoted' and find_waiting(removed) or {}
begin_writes() -- it frees memory
in_chunks('UNLINK', nil, keys)
forget_facts(removed)
in_chunks('HDEL', ledger, removed)
for _, one in ipairs(foreign) do
  watch_foreign(one[1], one[2])
end
if source == 'lanes' then
  in_chunks('ZREM', list_key, members)
  if controlled then
    end_control() -- it moves what is held only to where the purge was already
  end
elseif source == 'scheduled' then
  in_chunks('ZREM', scheduled, ids)
elseif source == 'promoted' then
  leave_places(places)
elseif source ~= 'inboxes' and #ids > 0 then
  redis.call('LTRIM', list_key, 0, -#ids - 1)
end
if emitting then
  for _, id in ipairs(removed) do
    emit('discarded', id, { details = { reason = 'purged' } })
  end
end
flush()
notify_watchers(removed, 'cancelled ')
return { length, #ids, #removed }
