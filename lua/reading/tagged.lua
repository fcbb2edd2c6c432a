-- Return the ids of unfinished items and dead letters that have a tag, in the order of their bytes.
--
-- Keys: queue
-- Arguments:
--   prefix  text     the queue's name
--   tag     text     the tag
--   after   text     the id after which to begin; empty: with the first
--   count   count    how many to return
-- Reply: the ids.
-- Cost: O(log n + count).
-- Limits: at most 1,000 ids a call.

redis.call('LLEN', queue) -- a cluster finds the node by a key of the script
local start, ids = '(' .. tag .. '\0' .. after, {}
for i, member in
  ipairs(redis.call('ZRANGE', prefix .. ':tags', start, '(' .. tag .. '\1', 'BYLEX', 'LIMIT', 0, count))
do
  ids[i] = string.sub(member, #tag + 2)
end
return ids
