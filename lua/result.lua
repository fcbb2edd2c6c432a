-- Read the results of completed items.
--
-- Keys: queue
-- Arguments:
--   prefix   text  the queue's name
--   entries  rest  ids
-- Reply: a list, an entry per id: the result, or false if there is none (any more).
-- Cost: O(1) per id.
-- Limits: at most 1,000 ids a call; results are as large as they are, so ask for few.

redis.call('LLEN', queue) -- a script has a key, by which a cluster finds its node

local results = {}
for at = entries + 1, #ARGV do
  results[#results + 1] = redis.call('GET', prefix .. ':result:' .. ARGV[at])
end
return results
