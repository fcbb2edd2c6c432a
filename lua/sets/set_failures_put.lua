-- Record items of a set whose processing has failed, unless another reader has taken over its stream.
--
-- They keep their leases. The reader fails them when it completes the others. A batch that is repeated is
-- recorded again: its first call forgets what was recorded before.
--
-- Keys: queue
-- Arguments:
--   prefix   text     the queue's name
--   stream   text     the name of the stream
--   reader   text     the reader of the stream
--   set      text     the name of the set
--   anew     flag     1: forget what was recorded for this set before
--   keep_ms  integer  how long the failures are kept from now on
--   entries  rest     id, "<delay in ms> <size of its data> <error>" (delay and error as in `fail_many`), …
-- Reply: 1, or 0 if another reader has taken over (then nothing was done).
-- Cost: O(1) per item; O(n) to forget n.
-- Limits: at most 1,000 items a call.
-- Uses: in_chunks (keys), values_from (lists), is_stream_owner (stream_owner)

redis.call('LLEN', queue) -- a cluster finds the node by a key of the script
if not is_stream_owner() then return 0 end
local failures = prefix .. ':set:' .. set .. ':failures'
if anew then redis.call('UNLINK', failures) end
local recorded = values_from(ARGV, entries + 1)
in_chunks('HSET', failures, recorded)
redis.call('PEXPIRE', failures, keep_ms)
return 1
