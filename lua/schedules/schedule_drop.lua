-- Remove schedules. The items that they have added stay.
--
-- Keys: schedules, ticks, declared
-- Arguments:
--   prefix   text  the queue's name
--   entries  rest  names
-- Reply: a list with an entry per name: 1 removed, 0 there is no such schedule.
-- Cost: O(log n) per name.
-- Limits: at most 1,000 names a call.

redis.call('ZCARD', ticks)
redis.call('HLEN', declared)
local answers = {}
for row = entries + 1, #ARGV do
  local name = ARGV[row]
  answers[#answers + 1] = redis.call('HDEL', schedules, name)
  redis.call('UNLINK', prefix .. ':schedule:' .. name)
  redis.call('HDEL', declared, name)
  redis.call('ZREM', ticks, name) -- until then, `tick` finds what is left of an interrupted call
end
return answers
