-- Put dead letters back to the end of the queue, as items that were never leased.
--
-- Keys: queue, processing, gone, deadlines, scheduled, ledger, dead, events
-- Arguments:
--   prefix     text     the queue's name
--   now_ms     integer  the time; empty: the server's time
--   max_bytes  integer  stop before this much data (the first dead letter is always requeued)
--   entries    rest     ids
-- Reply: a list with an entry per id: 1 requeued, 0 there is no such dead letter, -1 not requeued because an
--   item with its id is in the queue, -2 not checked, nor any after it, because of `max_bytes`: call again.
-- Cost: O(log n) per id. The data is copied.
-- Limits: at most 1,000 ids and `max_bytes` of data a call.
-- Needs: check

redis.call('ZCARD', dead)
local sizes = {}
for row = entries + 1, #ARGV do
  -- This raises now, before anything is written, if the key has another type.
  sizes[row] = redis.call('HSTRLEN', dead_key(ARGV[row]), 'data')
end

local answers, requeued, missing, size_of, bytes = {}, {}, {}, {}, 0
for row = entries + 1, #ARGV do
  local id, answer = ARGV[row], -2
  bytes = bytes + sizes[row]
  if row == entries + 1 or bytes <= max_bytes then
    local data = redis.call('HGET', dead_key(id), 'data')
    if not data then
      answer = 0
      missing[#missing + 1] = id
    elseif redis.call('SETNX', data_key(id), data) == 1 then
      answer = 1
      requeued[#requeued + 1], size_of[id] = id, #data
    else
      answer = -1
    end
  end
  answers[#answers + 1] = answer
end
leave_dead(missing) -- ids without a dead letter
leave_dead(requeued)
begin_incarnation(requeued)
enter_waiting(requeued, false)
for _, id in ipairs(emitting and requeued or {}) do
  emit('requeued', id, { size = size_of[id] })
end
flush()
return answers
