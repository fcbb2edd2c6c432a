-- Drop what a queue holds of ended stages of flow runs: their dead letters, and notes that their items were cancelled.
--
-- Keys: dead
-- Arguments:
--   prefix   text     the queue's name
--   now_ms   integer  the time; empty: the server's time
--   entries  rest     ids of items that do not exist
-- Reply: a list with an entry per id: 1 its dead letter was dropped, 0 there was none.
-- Cost: O(log n) per id.
-- Limits: at most 1,000 ids a call.
-- Calls: drop_many

redis.call('ZCARD', dead)
redis.call('ZCARD', cancelled_key)
redis.call('HLEN', unsettled_key)
local ids = {}
for row = entries + 1, #ARGV do
  ids[#ids + 1] = ARGV[row]
end
local answers = call_drop_many(keys_at(prefix, keys_of_drop_many), arguments_at(prefix, ids))
in_chunks('ZREM', cancelled_key, ids)
in_chunks('HDEL', unsettled_key, ids)
return answers
