-- Lease items again that other holders have under lease, if they were leased some time ago.
--
-- The holders before keep no right but one: the first to complete an item is accepted.
--
-- Keys: queue, processing, gone, deadlines, scheduled, ledger, fence, options, errors, events
-- Arguments:
--   prefix      text     the queue's name
--   now_ms      integer  the time; empty: the server's time
--   session     text     the new holder: the value of the lease keys
--   set_many    flag     1: the server has MSETEX and permits it, see `probe`
--   elapsed_ms  integer  the minimum time since an item was leased last
--   hold_ms     integer  the lease time
--   max_bytes   integer  stop before this much data (the first item is always leased)
--   entries     rest     id, token (of its last lease), …
-- Reply: the time in ms, how many rows were checked, 0, then id, data, token, attempt for each
--   item that was leased, in the order of the rows. If one of them carries more, a list of that comes
--   last, as in `lease_many`.
-- Cost: O(log n) per item.
-- Limits: at most 1,000 items and `max_bytes` of data a call.
-- Uses: begin_writes (begin_writes), now (clock), is_closed (closed), is_current (current), emit_all, flush
--   (emit), any_facts, traces_of (facts), data_key, lease_keys_of (keys), begin_leases, chosen, drop_checked,
--   take_tokens, write_leases (lease), read_ledger (ledger), values_from (lists), keep_shared_slot
--   (shared_slot)

local ids = values_from(ARGV, entries + 1, 2)
redis.call('LLEN', queue)
redis.call('ZCARD', scheduled)
local records_before = redis.call('HMGET', ledger, unpack(ids))
local scores = redis.call('ZMSCORE', deadlines, unpack(ids))
redis.call('LLEN', processing)

local checked, overdue = is_closed and #ids or 0, {}
for i = checked + 1, #ids do
  local id = ids[i]
  local _, _, _, leased_at = read_ledger(records_before[i])
  local token = tonumber(ARGV[entries + 2 * i])
  if
    not taken[id]
    and is_current(id, token, scores[i], records_before[i])
    and leased_at <= now - elapsed_ms
  then
    local data, n = redis.pcall('GET', data_key(id)), #chosen + 1
    if type(data) == 'string' then
      if n > 1 and bytes + #data > max_bytes then break end
      bytes = bytes + #data
      local keys = lease_keys_of({ id })
      chosen[n], found[n], taken[id] = id, data, true
      if tonumber(scores[i]) <= now then overdue[#overdue + 1] = id end
      lease_keys[2 * n - 1], lease_keys[2 * n] = keys[1], keys[2]
    end
  end
  checked = i
end

local reply = { now, checked, 0 }
if #chosen > 0 then
  begin_writes() -- a lease must be possible even then
  for _, id in ipairs(overdue) do
    keep_shared_slot(id, now + hold_ms)
  end
  take_tokens()
  emit_all('expired', chosen, '1')
  write_leases(#chosen, hold_ms, reply)
  begin_leases()
  redis.call('LTRIM', processing, #chosen, -1) -- they are in the list already
end
drop_checked(0)
flush()
if any_facts and #chosen > 0 then reply[#reply + 1] = traces_of(chosen) end
return reply
