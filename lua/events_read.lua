-- Read kept events, the oldest first.
--
-- Keys: events
-- Arguments:
--   prefix  text     the queue's name
--   after   text     the number of the last event that is known; 0: from the oldest
--   count   integer  how many at most
-- Reply: the number of the last event there has been (false: none are kept), then for each its number and its
--   ten fields, each with its name.
-- Cost: O(log n + count).
-- Limits: at most 1,000 events a call.

local reply = { newest() }
for _, entry in ipairs(redis.call('XRANGE', events, '(' .. after .. '-1', '+', 'COUNT', count)) do
  reply[#reply + 1], reply[#reply + 2] = entry[1], entry[2]
end
return reply
