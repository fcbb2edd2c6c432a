-- Return tags, and how many unfinished items and dead letters have each.
--
-- Keys: queue
-- Arguments:
--   prefix  text     the queue's name
--   first   text     the tag to begin with, or the one after it in the order of bytes
--   count   count    how many tags to return
-- Reply: a tag, how many have it, …
-- Cost: O(log n) per tag.
-- Limits: at most 1,000 tags a call.

redis.call('LLEN', queue) -- a cluster finds the node by a key of the script
local reply, start = {}, '[' .. first
while #reply < 2 * count do
  local member = redis.call('ZRANGE', prefix .. ':tags', start, '+', 'BYLEX', 'LIMIT', 0, 1)[1]
  local tag = member and string.match(member, '^(%Z*)%z')
  if not tag then break end
  reply[#reply + 1] = tag
  reply[#reply + 1] = redis.call('ZLEXCOUNT', prefix .. ':tags', '[' .. tag .. '\0', '(' .. tag .. '\1')
  start = '[' .. tag .. '\1'
end
return reply
