-- Return kept events, the oldest first.
--
-- Keys: events
-- Arguments:
--   prefix  text     the queue's name
--   after   text     the number of the last event that the caller knows; 0: begin with the oldest
--   count   count    the maximum number to return
-- Reply: the number of the last event of all (false: none are kept or published), 1 if events are kept, the
--   secret with which they are published (empty: they are not), then for each event its number and a list of
--   its fields, each with its name.
-- Cost: O(log n + count).
-- Limits: at most 1,000 events a call.
-- Uses: newest (newest)

local keep = redis.call('HMGET', prefix .. ':events:keep', 'count', 'age_ms', 'live')
local kept = keep[1] and (keep[1] ~= '0' or keep[2] ~= '0')
local reply = { newest(), kept and 1 or 0, string.match(keep[3] or '', ' (%x+)$') or '' }
for _, entry in ipairs(redis.call('XRANGE', events, '(' .. after .. '-1', '+', 'COUNT', count)) do
  reply[#reply + 1], reply[#reply + 2] = entry[1], entry[2]
end
return reply
