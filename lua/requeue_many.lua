-- Put dead letters back to the end of the queue, as items that were never leased.
--
-- Keys: queue, processing, gone, deadlines, scheduled, ledger, dead, events
-- Arguments:
--   prefix     text     the queue's name
--   now_ms     integer  the time, or empty for the server's
--   max_bytes  integer  stop before this much data (the first dead letter is always looked at)
--   entries    rest     ids
-- Reply: a list, an entry per id: 1 requeued, 0 not among the dead letters, -1 left there because an item
--   with its id is in the queue, -2 not looked at, nor any after it, for want of room: call again.
-- Cost: O(log n) per id. The data is copied.
-- Limits: at most 1,000 ids and `max_bytes` of data a call.
-- Needs: check

redis.call('ZCARD', dead)
local sizes = {}
for at = entries + 1, #ARGV do
  -- Also raises now, before anything is written, if it is of another type.
  sizes[at] = redis.call('HSTRLEN', dead_key(ARGV[at]), 'data')
end

local answers, back, left, size_of, bytes = {}, {}, {}, {}, 0
for at = entries + 1, #ARGV do
  local id, answer = ARGV[at], -2
  bytes = bytes + sizes[at]
  if at == entries + 1 or bytes <= max_bytes then
    local data = redis.call('HGET', dead_key(id), 'data')
    if not data then
      answer = 0
      left[#left + 1] = id
    elseif redis.call('SETNX', data_key(id), data) == 1 then
      answer = 1
      back[#back + 1], size_of[id] = id, #data
    else
      answer = -1
    end
  end
  answers[#answers + 1] = answer
end
leave_dead(left) -- an id that stands for nothing
leave_dead(back)
begin_incarnation(back)
enter_waiting(back, false)
for _, id in ipairs(emitting and back or {}) do
  emit('requeued', id, { size = size_of[id] })
end
flush()
return answers
