-- Drop dead letters by their ids.
--
-- Keys: gone, scheduled, dead, options, errors, events
-- Arguments:
--   prefix   text     the queue's name
--   now_ms   integer  the time; empty: the server's time
--   entries  rest     ids
-- Reply: a list with an entry per id: 1 dropped, 0 there is no such dead letter.
-- Cost: O(log n) per id.
-- Limits: at most 1,000 ids a call.
-- Uses: dead_key (dead_letter), emit, emitting, flush (emit), in_chunks (keys)

redis.call('ZCARD', dead)
local answers, dropped = {}, {}
for row = entries + 1, #ARGV do
  answers[#answers + 1] = redis.call('UNLINK', dead_key(ARGV[row]))
  if emitting and answers[#answers] == 1 then emit('dropped', ARGV[row], {}) end
  dropped[#dropped + 1] = ARGV[row]
end
in_chunks('ZREM', dead, dropped)
flush()
return answers
