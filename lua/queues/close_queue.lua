-- Begin to delete a queue: mark it, so that nothing is added to it or leased from it, and end its leases.
--
-- Nothing waits any more at once. The sessions that hold items are ordered to cancel them, by
-- `cancel <token> <id>` on their channels `:push:<session>`. What is left, `delete_queue` removes.
--
-- Keys: queue, processing, gone, deadlines, scheduled, ledger, watchers, options, errors, events
-- Arguments:
--   prefix  text     the queue's name
--   now_ms  integer  the time; empty: the server's time
--   count   count    how many leases to end
-- Reply: how many leases were ended; if it is `count`, there may be more: call again.
-- Cost: O(log n) per lease.
-- Limits: `count` leases (at most 1,000) a call.
-- Needs: check
-- Uses: control_key, held_key, lanes_key (RARE_KEYS), begin_writes (begin_writes), now (clock), is_closed
--   (closed), emit, emitting, flush (emit), forget_facts (facts), is_ours (foreign), data_key, in_chunks,
--   read_in_chunks (keys), read_ledger (ledger), append (lists), free_leases, note_options, wake_next
--   (slots), notify_watchers (watchers)

local ids = redis.call('ZRANGE', deadlines, 0, count - 1)
local records = read_in_chunks('HMGET', ledger, ids)
local scores = read_in_chunks('ZMSCORE', deadlines, ids)
local keys, told = {}, {}
for i, id in ipairs(ids) do
  local _, token = read_ledger(records[i])
  local holder = redis.pcall('GET', prefix .. ':lease:' .. id)
  if token and is_ours(scores[i]) and type(holder) == 'string' then
    told[#told + 1] = { holder, string.format('cancel %.0f ', token) .. id }
  end
  append(keys, data_key(id), prefix .. ':lease:' .. id, prefix .. ':leased_by_session:' .. id)
end
local total = redis.call('LLEN', queue)
  + redis.call('LLEN', held_key)
  + redis.call('ZCARD', lanes_key)
  + redis.call('ZCARD', deadlines)
  + redis.call('ZCARD', scheduled)

begin_writes() -- it frees memory
local is_new = not is_closed
if is_new then redis.call('HSET', control_key, 'closed', string.format('deleted %.0f', now)) end
redis.call('UNLINK', queue, held_key, lanes_key)
in_chunks('UNLINK', nil, keys)
in_chunks('HDEL', ledger, ids)
note_options(ids)
forget_facts(ids)
in_chunks('ZREM', deadlines, ids)
free_leases(ids)
wake_next() -- of a queue that shares limits
if emitting then
  if is_new then emit('deleted', '', { details = { count = total } }) end
  for _, id in ipairs(ids) do
    emit('discarded', id, { details = { reason = 'deleted' } })
  end
end
flush()
for _, one in ipairs(told) do
  redis.pcall('PUBLISH', prefix .. ':push:' .. one[1], one[2])
end
notify_watchers(ids, 'cancelled ')
return #ids
