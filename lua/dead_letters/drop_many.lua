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
-- Uses: tags_key (RARE_KEYS), dead_key, leave_dead (dead_letter), emit, emitting, flush (emit)

redis.call('ZCARD', dead)
redis.call('HLEN', options)
redis.call('ZCARD', tags_key)
local answers, ids, dropped = {}, {}, {}
for row = entries + 1, #ARGV do
  answers[#answers + 1] = dropped[ARGV[row]] and 0 or redis.call('EXISTS', dead_key(ARGV[row]))
  dropped[ARGV[row]], ids[#ids + 1] = true, ARGV[row]
  if emitting and answers[#answers] == 1 then emit('dropped', ARGV[row], {}) end
end
leave_dead(ids)
flush()
return answers
