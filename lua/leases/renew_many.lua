-- Renew the leases of current holders, counted from now.
--
-- Keys: gone, deadlines, scheduled, ledger, options, errors, events
-- Arguments:
--   prefix   text     the queue's name
--   now_ms   integer  the time; empty: the server's time
--   session  text     the holder: the value of the lease keys
--   set_many flag     1: the server has MSETEX and permits it, see `probe`
--   entries  rest     id, token, lease time in ms, …
-- Reply: a list with an entry per item: when its lease expires now, in ms, or 0: rejected (completed,
--   returned, or leased to another), or -1: rejected, and the item was cancelled a short while ago.
-- Cost: O(log n) per item.
-- Limits: at most 1,000 items a call.
-- Uses: cancelled_key (RARE_KEYS), any_cancelled (begin_incarnation), begin_writes (begin_writes), now
--   (clock), is_current (current), announce (due), emit, emitting, flush (emit), data_key, in_chunks,
--   lease_keys_of (keys), read_ledger (ledger), values_from (lists), keep_shared_slot (shared_slot),
--   write_lease_keys (write_lease_keys)

local ids = values_from(ARGV, entries + 1, 3)
redis.call('ZCARD', scheduled) -- raises now, before anything is written, if the key has another type
local records = redis.call('HMGET', ledger, unpack(ids))
local scores = redis.call('ZMSCORE', deadlines, unpack(ids))

begin_writes() -- leases must be renewed even then

local answers, soonest, begun = {}, nil, {}
for i, id in ipairs(ids) do
  local row = entries + 3 * (i - 1)
  local token, lease_ms = tonumber(ARGV[row + 2]), tonumber(ARGV[row + 3])
  answers[i] = 0
  if is_current(id, token, scores[i], records[i]) then
    local ends = now + lease_ms
    if tonumber(scores[i]) <= now then keep_shared_slot(id, ends) end
    redis.call('ZADD', deadlines, ends, id)
    if tonumber(scores[i]) <= now then
      local first, last, attempt = read_ledger(records[i])
      begun[#begun + 1] = id
      begun[#begun + 1] = string.format('%.0f %.0f %.0f %.0f', first, last, attempt, now)
    end
    if ends < tonumber(scores[i]) then soonest = math.min(soonest or lease_ms, lease_ms) end
    write_lease_keys(lease_keys_of({ id }), 1, 2, lease_ms)
    answers[i] = ends
    if emitting then emit('renewed', id, { holder = session, token = token, due = ends }) end
  elseif
    any_cancelled
    and redis.call('EXISTS', data_key(id)) == 0
    and redis.call('ZSCORE', cancelled_key, id)
  then
    answers[i] = -1
  end
end
in_chunks('HSET', ledger, begun) -- leases that had expired begin again: see `checks/lib/steps`
flush()
-- Waiting processes know of a later time.
announce(soonest)
return answers
