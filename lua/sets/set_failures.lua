-- Return the recorded failures of a set, one step at a time.
--
-- Keys: queue
-- Arguments:
--   prefix  text   the queue's name
--   stream  text   the name of the stream
--   reader  text   the reader of the stream
--   set     text   the name of the set
--   cursor  text   "0" in the first call, then the cursor of the last reply
--   count   count  about how many to return
-- Reply: 1, or 0 if another reader has taken over; the next cursor ("0": done); then for each item: id,
--   "<delay in ms> <size of its data> <error>", as recorded.
-- Cost: O(count).
-- Limits: about `count` failures; a small set of them is returned at once. A failure that is recorded from
--   the first step to the last is returned at least once.
-- Uses: extend (lists), is_stream_owner (stream_owner)

redis.call('LLEN', queue) -- a cluster finds the node by a key of the script
local page = redis.call('HSCAN', prefix .. ':set:' .. set .. ':failures', cursor, 'COUNT', count)
local reply = { is_stream_owner() and 1 or 0, page[1] }
extend(reply, page[2])
return reply
