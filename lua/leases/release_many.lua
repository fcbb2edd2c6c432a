-- Return leased items to the queue before their leases expire: to the front, to the end, or after a delay.
--
-- The attempt is not counted.
--
-- Keys: queue, processing, gone, deadlines, scheduled, ledger, options, errors, events
-- Arguments:
--   prefix   text     the queue's name
--   now_ms   integer  the time; empty: the server's time
--   entries  rest     id, token, delay in ms (0: none), front (1) or end (0), …
-- Reply: a list with an entry per item: 1 released, 0 rejected (completed, returned, or leased to another).
-- Cost: O(log n) per item; leaving `processing` is O(1) amortised.
-- Limits: at most 1,000 items a call.
-- Uses: begin_writes (begin_writes), now (clock), is_current (current), emit, emitting, flush (emit),
--   in_chunks (keys), read_ledger (ledger), values_from (lists), enter_scheduled, leave_leased (move),
--   check_processing (processing), note_options, wake_next (slots), enter_waiting (waiting)

local ids = values_from(ARGV, entries + 1, 4)
local records = redis.call('HMGET', ledger, unpack(ids))
local scores = redis.call('ZMSCORE', deadlines, unpack(ids))

local answers, released, to_front, to_end, delayed, seen = {}, {}, {}, {}, {}, {}
local token_of = {}
local new_records = {}
for i, id in ipairs(ids) do
  local row = entries + 4 * (i - 1)
  local token, delay, front = tonumber(ARGV[row + 2]), tonumber(ARGV[row + 3]), ARGV[row + 4] == '1'
  answers[i] = 0
  if not seen[id] and is_current(id, token, scores[i], records[i]) then
    answers[i], seen[id] = 1, true
    released[#released + 1], token_of[id] = id, token
    local first, last, attempt, leased_at = read_ledger(records[i])
    new_records[2 * #released - 1] = id
    new_records[2 * #released] =
      string.format('%.0f %.0f %.0f %.0f', first, last, math.max(0, attempt - 1), leased_at)
    if delay > 0 then
      delayed[#delayed + 1] = { id, delay }
    elseif front then
      to_front[#to_front + 1] = id
    else
      to_end[#to_end + 1] = id
    end
  end
end
if #released == 0 then return answers end
redis.call('LLEN', queue)
redis.call('ZCARD', scheduled)
check_processing()

note_options(released)
begin_writes() -- a released item must be able to leave

enter_waiting(to_front, true, false, false, true)
enter_waiting(to_end, false)
enter_scheduled(delayed)
in_chunks('HSET', ledger, new_records)
leave_leased(released)
wake_next()
if emitting then
  for i = #to_front, 1, -1 do
    emit('released', to_front[i], { token = token_of[to_front[i]], front = '1' })
  end
  for _, id in ipairs(to_end) do
    emit('released', id, { token = token_of[id] })
  end
  for _, item in ipairs(delayed) do
    emit('released', item[1], { token = token_of[item[1]], due = now + item[2] })
  end
end
flush()
return answers
