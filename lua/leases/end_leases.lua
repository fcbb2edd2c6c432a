-- End leases before they expire: the items return to the front of the queue, in the order of the rows.
--
-- The attempts count, and a holder that completes its item first is accepted, as after the end of a lease.
--
-- Keys: queue, processing, gone, deadlines, scheduled, ledger, options, errors, events
-- Arguments:
--   prefix   text     the queue's name
--   now_ms   integer  the time; empty: the server's time
--   entries  rest     id, token (0: a watched lease of another client), …
-- Reply: a list with an entry per item: 1 it waits now, 0 it is not under the lease of this token, or gone.
-- Cost: O(log n) per item; leaving `processing` is O(1) amortised.
-- Limits: at most 1,000 items a call.
-- Uses: begin_writes (begin_writes), emit_all, flush (emit), forget_facts (facts), is_ours (foreign),
--   data_key, in_chunks (keys), read_ledger (ledger), values_from (lists), drop_lease_keys (move),
--   check_processing, unlist_or_note (processing), free_leases, note_options, wake_next (slots),
--   enter_waiting (waiting)

local ids = values_from(ARGV, entries + 1, 2)
redis.call('LLEN', queue)
redis.call('ZCARD', scheduled)
local records = redis.call('HMGET', ledger, unpack(ids))
local scores = redis.call('ZMSCORE', deadlines, unpack(ids))

local answers, ended, waiting, vanished, seen = {}, {}, {}, {}, {}
for i, id in ipairs(ids) do
  local token = tonumber(ARGV[entries + 2 * i])
  local _, last = read_ledger(records[i])
  answers[i] = 0
  if scores[i] and not seen[id] and token == (is_ours(scores[i]) and last or 0) then
    ended[#ended + 1], seen[id] = id, true
    if redis.call('EXISTS', data_key(id)) == 1 then
      answers[i], waiting[#waiting + 1] = 1, id
    else
      vanished[#vanished + 1] = id
    end
  end
end
if #ended == 0 then return answers end
check_processing()

note_options(ended)
begin_writes() -- items must be able to return

enter_waiting(waiting, true)
forget_facts(vanished)
in_chunks('HDEL', ledger, vanished)
in_chunks('ZREM', deadlines, ended)
unlist_or_note(ended)
drop_lease_keys(ended)
free_leases(ended)
wake_next()
emit_all('vanished', vanished)
emit_all('expired', waiting, '1')
flush()
return answers
