-- Note over how many queues the items of a queue are spread, or return what was noted first.
--
-- Who may not write reads what is noted, and is refused if nothing is.
--
-- Keys: shards, queue
-- Arguments:
--   prefix  text  the name of the first shard
--   layout  text  `<number of shards> <id or group>`
-- Reply: the layout that is noted; an empty text: items were added to the queue before, and it has none.
-- Cost: O(1).
-- Limits: none.

redis.call('LLEN', queue)
local noted = redis.call('GET', shards)
if noted then return noted end
if redis.call('EXISTS', prefix .. ':fence', queue) > 0 then return '' end
redis.call('SET', shards, layout)
return layout
