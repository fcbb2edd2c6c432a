-- Drop dead letters for good.
--
-- Keys: dead, events
-- Arguments:
--   prefix   text     the queue's name
--   now_ms   integer  the time, or empty for the server's
--   entries  rest     ids
-- Reply: a list, an entry per id: 1 dropped, 0 not among the dead letters.
-- Cost: O(log n) per id.
-- Limits: at most 1,000 ids a call.

redis.call('ZCARD', dead)
local answers, dropped = {}, {}
for at = entries + 1, #ARGV do
  answers[#answers + 1] = redis.call('UNLINK', dead_key(ARGV[at]))
  if emitting and answers[#answers] == 1 then
    emit('dropped', ARGV[at], {})
  end
  dropped[#dropped + 1] = ARGV[at]
end
in_chunks('ZREM', dead, dropped)
flush()
return answers
