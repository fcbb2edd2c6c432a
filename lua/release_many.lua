-- Give leased items back before their leases end: to the front, to the end, or after a delay.
--
-- The delivery is taken back, too: what was given back was no attempt.
--
-- Keys: queue, processing, gone, deadlines, scheduled, ledger, events
-- Arguments:
--   prefix   text     the queue's name
--   now_ms   integer  the time, or empty for the server's
--   entries  rest     id, token, delay in ms (0: ready at once), front (1) or end (0), …
-- Reply: a list, an entry per item: 1 given back, 0 refused (completed, returned, or leased to another).
-- Cost: O(log n) per item; leaving `processing` is O(1) amortised.
-- Limits: at most 1,000 items a call.
-- Needs: check

local ids = {}
for at = entries + 1, #ARGV, 4 do
  ids[#ids + 1] = ARGV[at]
end
local records = redis.call('HMGET', ledger, unpack(ids))
local scores = redis.call('ZMSCORE', deadlines, unpack(ids))

local answers, leaving, to_front, to_end, delayed, met = {}, {}, {}, {}, {}, {}
local token_of = {}
local taken_back = {}
for i, id in ipairs(ids) do
  local at = entries + 4 * (i - 1)
  local token, delay, front = tonumber(ARGV[at + 2]), tonumber(ARGV[at + 3]), ARGV[at + 4] == '1'
  answers[i] = 0
  if not met[id] and is_current(id, token, scores[i], records[i]) then
    answers[i], met[id] = 1, true
    leaving[#leaving + 1], token_of[id] = id, token
    local first, last, attempt, leased_at = read_ledger(records[i])
    taken_back[2 * #leaving - 1] = id
    taken_back[2 * #leaving] =
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
leave_leased(leaving)
in_chunks('HSET', ledger, taken_back)
enter_waiting(to_front, true)
enter_waiting(to_end, false)
enter_scheduled(delayed)
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
