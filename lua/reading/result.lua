-- Return the results of completed items.
--
-- Keys: queue
-- Arguments:
--   prefix   text  the queue's name
--   entries  rest  ids
-- Reply: a list with an entry per id: the result, or false if there is none.
-- Cost: O(1) per id.
-- Limits: at most 1,000 ids a call; the size of the results has no limit, so ask for few.

redis.call('LLEN', queue) -- a cluster finds the node by a key of the script

local results = {}
for row = entries + 1, #ARGV do
  results[#results + 1] = redis.call('GET', prefix .. ':result:' .. ARGV[row])
end
return results
