-- Note over how many queues the items of a queue are spread, or return what was noted first.
--
-- Who may not write reads what is noted, and is refused if nothing is.
--
-- Keys: shards, queue, deadlines, scheduled, dead, schedules
-- Arguments:
--   prefix  text  the name of the first shard
--   layout  text  `<number of shards> <id or group>`
-- Reply: the layout that is noted; an empty text: the queue has items or settings, and no shards.
-- Cost: O(1).
-- Limits: none.
-- Uses: control_key, held_key, lanes_key (RARE_KEYS)

local noted = redis.call('GET', shards)
if noted then return noted end
local used =
  redis.call('EXISTS', queue, held_key, lanes_key, deadlines, scheduled, dead, schedules, control_key)
if used > 0 then return '' end
redis.call('SET', shards, layout)
return layout
